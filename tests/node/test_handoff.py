"""Whole nodes over real libp2p: prefill on one, decode on another, requests at any."""

from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from protocols.chat import ChatDelta, ChatProgress, ChatStarted
from protocols.gossip import Role
from tests.support import toy_engine
from tests.support.processes import children_with
from tests.support.toy_nodes import MODEL, toy_node, toy_nodes, until

Node: TypeAlias = tuple[tuple[Role, ...], tuple[str, ...]]

PREFILL: Node = (("prefill",), ())
DECODE: Node = (("decode",), ())
SLOW_PREFILL: Node = (("prefill",), ("--step-s", "0.05"))
SLOW_DECODE: Node = (("decode",), ("--step-s", "0.04"))
BARE: Node = ((), ())

PROMPT = "the quick brown fox jumps over the lazy dog " * 40
WORDS = len(PROMPT.split())


def expected(prompt: str) -> str:
    return toy_engine.answer_to(toy_engine.tokenize(prompt))


@pytest.mark.parametrize("overlap", [True, False])
async def test_the_prompt_is_prefilled_by_the_other_node(tmp_path: Path, overlap: bool):
    async with toy_nodes(tmp_path, PREFILL, SLOW_DECODE, overlap=overlap) as (prefill, decode):
        answer = await decode.ask(PROMPT)
        assert answer.text == expected(PROMPT)
        assert answer.finished is not None
        report = answer.finished.report
        assert report.prefill == "remote"
        assert report.prefill_node == prefill.peer_id
        assert report.tokens.prompt == WORDS
        assert report.tokens.computed == WORDS
        assert report.raw_bytes == (WORDS - 1) * 3 * 2 * 2 * 8 * 2
        assert 0 < report.bytes <= report.raw_bytes
        assert report.route is not None
        assert "loopback lo" in report.route
        # It went over a connection for bulk, which the decode node has dialled.
        assert [peer for peer, _ in decode.cluster.host.bulk.routes] == [prefill.peer_id]
        assert [peer for peer, _ in prefill.cluster.host.bulk.routes] == [decode.peer_id]
        assert 0 <= report.hidden_ms <= report.transfer_ms
        assert report.ttft_ms > 0
        assert prefill.load == decode.load == 0


async def test_local_when_asked_or_short_or_alone(tmp_path: Path):
    async with toy_nodes(tmp_path, PREFILL, SLOW_DECODE) as (_, decode):
        local = await decode.ask(PROMPT, prefill="local")
        short = await decode.ask("a short prompt")
        forced = await decode.ask("a short prompt", prefill="remote")
        for answer, prefill, words in (
            (local, "local", "asks for local"),
            (short, "local", "under --remote-prefill-min-tokens 64"),
            (forced, "remote", "asks for remote"),
        ):
            assert answer.finished is not None
            assert answer.finished.report.prefill == prefill
            assert words in answer.finished.report.reason
        assert local.text == expected(PROMPT)
        assert short.text == forced.text == expected("a short prompt")
    async with toy_nodes(tmp_path / "alone", DECODE) as (alone,):
        answer = await alone.ask(PROMPT, prefill="remote")
        assert answer.finished is not None
        assert answer.finished.report.prefill == "local"
        assert "no prefill instance" in answer.finished.report.reason


async def test_a_prompt_of_one_token(tmp_path: Path):
    async with toy_nodes(tmp_path, PREFILL, DECODE) as (_, decode):
        answer = await decode.ask("one", prefill="remote")
        assert answer.text == expected("one")


async def test_any_node_answers(tmp_path: Path):
    async with toy_nodes(tmp_path, PREFILL, SLOW_DECODE, BARE) as nodes:
        for node in nodes:
            answer = await node.ask(PROMPT)
            assert answer.text == expected(PROMPT)
            assert answer.finished is not None
            assert answer.finished.report.prefill == "remote"
        unknown = await nodes[2].ask("hello", model="no-such-model")
        assert unknown.failed is not None
        assert (unknown.failed.status, unknown.failed.code) == (404, "model_not_found")
        assert MODEL in unknown.failed.message


async def test_many_at_once_each_get_their_own(tmp_path: Path):
    async with toy_nodes(tmp_path, PREFILL, DECODE, BARE) as nodes:
        answers: dict[int, str] = {}

        async def ask(index: int) -> None:
            prompt = f"question number {index} " * (30 + 10 * index)
            wish = "remote" if index % 3 else "local"
            answers[index] = (await nodes[index % 3].ask(prompt, prefill=wish)).text

        async with trio.open_nursery() as nursery:
            for index in range(12):
                nursery.start_soon(ask, index)
        for index in range(12):
            assert answers[index] == expected(f"question number {index} " * (30 + 10 * index))
        assert [node.load for node in nodes] == [0, 0, 0]


async def test_the_prefill_engine_dies_half_way(tmp_path: Path):
    async with toy_nodes(tmp_path, SLOW_PREFILL, DECODE) as (prefill, decode):
        before = prefill.instance.epoch
        answer = await decode.ask(PROMPT, prefill="remote", on_progress=KillOnce())
        assert answer.text == expected(PROMPT)
        assert answer.finished is not None
        report = answer.finished.report
        assert report.prefill == "local"
        assert "signal 9" in report.reason or "ended" in report.reason
        assert 0 < report.bytes < (WORDS - 1) * 192
        assert "tokens of it were used" in report.reason
        await until(lambda: prefill.instance.state == "ready" and prefill.instance.epoch != before)
        await until(lambda: decode.knows(prefill))
        again = await decode.ask(PROMPT, prefill="remote")
        assert again.finished is not None
        assert again.finished.report.prefill == "remote"


class KillOnce:
    """Called, it kills the slow engine; called again, it does nothing."""

    def __init__(self) -> None:
        self._done = False

    def __call__(self) -> None:
        if not self._done:
            kill_engine_of(SLOW_PREFILL)
        self._done = True


def kill_engine_of(node: Node) -> None:
    """Kill the engine of a slow node, which its delay per step tells from all others."""
    (engine,) = children_with(node[1][-1])
    engine.kill()


async def test_the_prefill_node_leaves_half_way(tmp_path: Path):
    async with toy_nodes(tmp_path, DECODE) as (decode,):
        async with trio.open_nursery() as nursery:
            leave = trio.Event()

            async def other() -> None:
                async with toy_node(tmp_path / "other", *SLOW_PREFILL[0:1], *SLOW_PREFILL[1]):
                    await leave.wait()

            nursery.start_soon(other)
            await until(
                lambda: (
                    sum(each.state == "ready" for _, each in decode.cluster.view.instances()) == 2
                )
            )
            await until(lambda: len(decode.cluster.links) == 1)
            answer = await decode.ask(PROMPT, prefill="remote", on_progress=leave.set)
        assert answer.text == expected(PROMPT)
        assert answer.finished is not None
        assert answer.finished.report.prefill == "local"
        assert "failed" in answer.finished.report.reason
        assert decode.load == 0


async def test_the_next_engine_takes_over_where_the_first_died(tmp_path: Path):
    async with toy_nodes(tmp_path, SLOW_PREFILL, PREFILL, SLOW_DECODE) as nodes:
        slow, fast, decode = nodes
        # The slow one is chosen first when it claims to be the faster one.
        slow.instance.prefill_rate = 1e6
        slow.cluster.update_instances(slow.instances.records())
        await until(
            lambda: any(
                each.prefill_tokens_per_s == 1e6 for _, each in decode.cluster.view.instances()
            )
        )
        answer = await decode.ask(PROMPT, on_progress=KillOnce())
        assert answer.text == expected(PROMPT)
        assert answer.finished is not None
        report = answer.finished.report
        assert report.prefill == "remote"
        assert report.prefill_node == fast.peer_id
        assert report.raw_bytes < 1.2 * (WORDS - 1) * 192


async def test_the_decode_engine_dies(tmp_path: Path):
    async with toy_nodes(tmp_path, DECODE) as (node,):
        answer = await node.ask(f"please {toy_engine.CRASH}")
        assert answer.failed is not None
        assert answer.failed.status == 503
        await until(lambda: node.instance.state == "restarting")
        refused = await node.ask("hello")
        assert refused.failed is not None
        assert refused.failed.status == 503
        assert "restarting" in refused.failed.message
        await until(lambda: node.instance.state == "ready")
        assert (await node.ask("hello")).text == expected("hello")


async def test_another_decode_node_takes_over_before_the_first_token(tmp_path: Path):
    async with toy_nodes(tmp_path, SLOW_DECODE, DECODE, BARE) as (slow, _, bare):

        async def kill_when_busy() -> None:
            await until(lambda: slow.load == 1)
            kill_engine_of(SLOW_DECODE)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_when_busy)
            answer = await slow.ask(PROMPT)
        assert answer.failed is None
        assert answer.text == expected(PROMPT)
        assert bare.load == 0


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_client_that_leaves_frees_every_engine(tmp_path: Path, phase: str):
    async with toy_nodes(tmp_path, SLOW_PREFILL, SLOW_DECODE, BARE) as nodes:
        prefill, decode, bare = nodes
        request = bare.request(PROMPT, prefill="remote")
        async with bare.backend.open_chat(request) as events:
            if phase == "prefill":
                await until(lambda: prefill.load == 1)
            else:
                async for event in events:
                    if isinstance(event, ChatDelta):
                        break
                    assert isinstance(event, ChatStarted | ChatProgress)
        await until(lambda: prefill.load == decode.load == 0, 5)
        answer = await bare.ask("still there", prefill="local")
        assert answer.text == expected("still there")


async def test_too_long_a_prompt(tmp_path: Path):
    async with toy_nodes(tmp_path, PREFILL, DECODE) as (prefill, decode):
        for node in (prefill, decode):
            answer = await node.ask("word " * toy_engine.MAX_CONTEXT)
            assert answer.failed is not None
            assert answer.failed.status == 400
            assert answer.failed.code == "context_length_exceeded"
            assert answer.failed.param == "messages"
