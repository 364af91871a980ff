"""Supervision of real engine processes that run a toy model."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing
from loguru import logger

from node.errors import EngineDied, InstanceNotReady, ModelNotHere
from node.instances.instance import MAX_REASON, Instance, InstanceSpec
from node.instances.manager import InstanceManager
from protocols.chat import Message, Sampling
from protocols.engine import Finished, Generate, GenerateStarted, Prefill, Token
from protocols.gossip import Role
from protocols.kv_prefill.messages import pack_tokens
from tests.support import toy_engine
from tests.support.processes import children_with

MODEL = "toy"


class Watched:
    """An instance, and a way to wait for its states."""

    def __init__(
        self,
        *options: str,
        missing: bool = False,
        roles: tuple[Role, ...] = ("prefill", "decode"),
    ) -> None:
        self.changed = trio.Event()
        self.stages: list[tuple[str, float]] = []
        self._missing = missing
        self.instance = Instance(
            InstanceSpec(model=MODEL, engine="mlx", roles=roles),
            MODEL,
            self._locate,
            self._on_change,
            lambda stage, fraction: self.stages.append((stage, fraction)),
            command=lambda _: toy_engine.command(*options),
        )

    async def _locate(self) -> Path:
        if self._missing:
            raise ModelNotHere("there is no such model", "add it")
        return Path("/nowhere")

    def _on_change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def wait_for(self, *states: str) -> None:
        with trio.fail_after(20):
            while self.instance.state not in states:
                await self.changed.wait()


@asynccontextmanager
async def running(
    *options: str, missing: bool = False, roles: tuple[Role, ...] = ("prefill", "decode")
) -> AsyncIterator[Watched]:
    watched = Watched(*options, missing=missing, roles=roles)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.instance.run)
        try:
            yield watched
        finally:
            nursery.cancel_scope.cancel()


def engine_pids() -> list[int]:
    return [child.pid for child in children_with("toy_engine")]


def wait_for_exit(pids: list[int]) -> None:
    processes = [psutil.Process(pid) for pid in pids]
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert alive == []


async def answer(instance: Instance, prompt: str, name: str = "r") -> str:
    tokens = toy_engine.tokenize(prompt)
    text = ""
    async with instance.request(name) as handle:
        await handle.send(
            Generate(request=handle.id, tokens=pack_tokens(tokens), sampling=Sampling())
        )
        while True:
            message = (await handle.receive()).message
            match message:
                case Token():
                    text += message.text
                case Finished():
                    return text
                case _:
                    assert isinstance(message, GenerateStarted)


async def test_loads_and_answers():
    async with running() as watched:
        await watched.wait_for("ready")
        assert watched.stages == [("reading", 0.5)]
        prompt = "one two three " * 30
        expected = toy_engine.answer_to(toy_engine.tokenize(prompt))
        assert await answer(watched.instance, prompt) == expected
        tokens = await watched.instance.tokenize("t", (Message(role="user", content=prompt),))
        assert tokens == toy_engine.tokenize(prompt)
        assert watched.instance.load == 0


async def test_instances_come_and_go_while_the_others_run():
    changes: list[tuple[str, ...]] = []
    manager = InstanceManager(
        lambda: changes.append(tuple(each.id for each in manager.records())),
        lambda instance, stage, fraction: None,
        command=lambda _: toy_engine.command("--step-s", "0.05"),
    )

    async def here() -> Path:
        return Path("/nowhere")

    def spec(model: str) -> InstanceSpec:
        return InstanceSpec(model=model, engine="mlx", roles=("decode",))

    async with trio.open_nursery() as nursery:
        first = manager.add(spec("first"), here)
        nursery.start_soon(manager.run)
        await trio.testing.wait_all_tasks_blocked()
        second = manager.add(spec("second"), here)
        with trio.fail_after(20):
            while {first.state, second.state} != {"ready"}:  # noqa: ASYNC110 (nothing tells)
                await trio.sleep(0.02)
        pids = engine_pids()
        assert len(pids) == 2
        text = "a prompt " * 20

        async def ask_first() -> None:
            with pytest.raises(EngineDied, match="was removed"):
                await answer(first, text)

        nursery.start_soon(ask_first)
        while first.load == 0:  # noqa: ASYNC110 (as above)
            await trio.sleep(0.01)
        assert await manager.remove(first.id)
        assert changes[-1] == (second.id,)
        assert manager.get(first.id) is None
        assert manager.find("first", "decode") is None
        with pytest.raises(InstanceNotReady, match="it was removed"):
            first.request("r")
        assert len(engine_pids()) == 1
        assert await answer(second, text) == toy_engine.answer_to(toy_engine.tokenize(text))
        assert not await manager.remove(first.id)
        nursery.cancel_scope.cancel()


async def test_an_instance_is_removed_while_it_loads():
    manager = InstanceManager(
        lambda: None,
        lambda instance, stage, fraction: None,
        command=lambda _: toy_engine.command("--load-s", "60"),
    )

    async def here() -> Path:
        return Path("/nowhere")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.run)
        await trio.testing.wait_all_tasks_blocked()
        instance = manager.add(InstanceSpec(model="m", engine="mlx", roles=("decode",)), here)
        with trio.fail_after(20):
            while instance.progress == 0:  # noqa: ASYNC110 (nothing tells of it)
                await trio.sleep(0.02)
        assert instance.record().progress == 0.5
        with trio.fail_after(10):
            assert await manager.remove(instance.id)
        assert engine_pids() == []
        nursery.cancel_scope.cancel()


async def test_answers_several_at_once():
    async with running() as watched:
        await watched.wait_for("ready")
        texts: dict[int, str] = {}

        async def ask(index: int) -> None:
            texts[index] = await answer(watched.instance, f"prompt {index} " * 50, f"r{index}")

        async with trio.open_nursery() as nursery:
            for index in range(8):
                nursery.start_soon(ask, index)
        for index in range(8):
            expected = toy_engine.answer_to(toy_engine.tokenize(f"prompt {index} " * 50))
            assert texts[index] == expected


async def test_is_restarted_when_it_is_killed_and_says_why():
    async with running("--step-s", "0.05") as watched:
        await watched.wait_for("ready")
        first = watched.instance.epoch
        (pid,) = engine_pids()

        async def killed_while_answering() -> None:
            with pytest.raises(EngineDied):
                await answer(watched.instance, "word " * 500)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(killed_while_answering)
            await trio.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
        await watched.wait_for("restarting")
        assert "signal 9" in watched.instance.reason
        with pytest.raises(InstanceNotReady, match="restarting"):
            watched.instance.request("r")
        await watched.wait_for("ready")
        assert watched.instance.epoch != first
        assert await answer(watched.instance, "again") == toy_engine.answer_to(
            toy_engine.tokenize("again")
        )


async def test_what_the_process_said_last_explains_its_death():
    async with running() as watched:
        await watched.wait_for("ready")
        with pytest.raises(EngineDied):
            await answer(watched.instance, toy_engine.CRASH)
        await watched.wait_for("restarting")
        assert "exit status 3" in watched.instance.reason
        assert "told to crash" in watched.instance.reason


async def test_a_crash_while_loading_is_tried_again_with_back_off():
    async with running("--crash-load") as watched:
        await watched.wait_for("restarting")
        assert "told to crash while loading" in watched.instance.reason
        with pytest.raises(InstanceNotReady):
            watched.instance.request("r")


async def test_a_model_that_cannot_be_loaded_is_not_tried_again():
    async with running("--fail-load") as watched:
        await watched.wait_for("failed")
        assert watched.instance.reason == f"cannot load {MODEL}"
        await trio.to_thread.run_sync(wait_for_exit, engine_pids())
        await trio.sleep(1)
        assert watched.instance.state == "failed"
        assert engine_pids() == []


async def test_other_nodes_are_told_the_beginning_of_a_long_reason():
    watched = Watched()
    watched.instance.reason = "it failed because " + "of this " * 10_000
    told = watched.instance.record().reason
    assert told.startswith("it failed because of this")
    assert len(told) <= MAX_REASON


async def test_an_engine_that_hands_over_no_caches_decodes_and_the_log_says_why():
    said: list[str] = []
    sink = logger.add(said.append, level="WARNING", format="{message}")
    try:
        async with running("--no-hand-off") as watched:
            await watched.wait_for("ready")
            assert watched.instance.record().roles == ("decode",)
            assert await answer(watched.instance, "one two") == toy_engine.answer_to(
                toy_engine.tokenize("one two")
            )
    finally:
        logger.remove(sink)
    assert toy_engine.OBSTACLE in "".join(said)


async def test_an_engine_that_can_do_nothing_it_was_started_for_is_a_failed_instance():
    async with running("--no-hand-off", roles=("prefill",)) as watched:
        await watched.wait_for("failed")
        record = watched.instance.record()
        assert (record.state, record.roles) == ("failed", ("prefill",))
        assert record.reason == f"mlx cannot prefill {MODEL}: {toy_engine.OBSTACLE}"
        await trio.to_thread.run_sync(wait_for_exit, engine_pids())


async def test_a_model_that_is_not_here_is_a_failed_instance():
    async with running(missing=True) as watched:
        await watched.wait_for("failed")
        assert "no such model" in watched.instance.reason


async def test_leaving_a_request_cancels_it():
    async with running("--step-s", "0.02") as watched:
        await watched.wait_for("ready")
        tokens = pack_tokens([1] * 4000)
        async with watched.instance.request("r") as handle:
            await handle.send(
                Prefill(request=handle.id, tokens=tokens, start=0, end=4000, codec="raw")
            )
            await handle.receive()
            assert watched.instance.load == 1
        assert watched.instance.load == 0
        # The engine has nothing left to do, so it answers at once.
        with trio.fail_after(2):
            await answer(watched.instance, "quick", "next")


async def test_cancelling_the_caller_cancels_the_request():
    async with running("--step-s", "0.02") as watched:
        await watched.wait_for("ready")
        with trio.move_on_after(0.2):
            await answer(watched.instance, "long " * 4000)
        assert watched.instance.load == 0


async def test_no_process_outlives_the_node():
    async with running() as watched:
        await watched.wait_for("ready")
        (pid,) = engine_pids()
    assert not psutil.pid_exists(pid)


async def test_the_process_ends_when_its_node_dies(tmp_path: Path):
    """A node that is killed cannot tell its engines to go."""
    script = tmp_path / "a_node.py"
    script.write_text(
        "import sys, trio\n"
        "from node.instances.process import start_engine\n"
        "async def main():\n"
        "    async with start_engine(sys.argv[1:], 'toy') as engine:\n"
        "        print(engine.process.pid, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    command = [toy_engine.command()[0], str(script), *toy_engine.command()]
    async with trio.open_nursery() as nursery:
        node: trio.Process = await nursery.start(
            partial(trio.run_process, command, stdout=-1, check=False)
        )
        assert node.stdout is not None
        engine = int(await node.stdout.receive_some())
        assert psutil.pid_exists(engine)
        node.kill()
        await trio.to_thread.run_sync(wait_for_exit, [engine])
