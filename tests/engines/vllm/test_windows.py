"""A model whose caches vLLM cannot hand out: it answers all the same, and prefills for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from loguru import logger

from node.instances.connection import RequestHandle
from node.instances.instance import InstanceSpec
from node.instances.manager import InstanceManager
from protocols.chat import Sampling
from protocols.engine import EngineMessage, Failed, Finished, Generate, Prefill
from protocols.kv_prefill.messages import pack_tokens
from tests.support.reference import write_tiny_llama

pytestmark = pytest.mark.engine

WINDOW = 64
PROMPT = list(range(100, 100 + 3 * WINDOW))


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    said: list[str] = []
    sink = logger.add(said.append, level="WARNING", format="{message}")
    yield said
    logger.remove(sink)


async def last_word(handle: RequestHandle) -> EngineMessage:
    while not isinstance(message := (await handle.receive()).message, Failed | Finished):
        pass
    return message


# In a process of its own, since the model of the other tests stays loaded in this one.
async def test_a_model_with_windows_answers_but_is_not_prefilled_for_others(
    tmp_path: Path, smollm2_path: Path, warnings: list[str]
) -> None:
    kinds = ["full_attention", *["sliding_attention"] * 2]
    path = write_tiny_llama(
        tmp_path / "windows",
        smollm2_path,
        head_dim=32,  # the smallest of which vLLM has kernels for CPUs
        sliding_window=WINDOW,
        layer_types=kinds,
    )

    async def locate() -> Path:
        return path

    changed = trio.Event()

    def note_change() -> None:
        nonlocal changed
        changed.set()
        changed = trio.Event()

    manager = InstanceManager(note_change, lambda instance, stage, fraction: None)
    spec = InstanceSpec("windows", "vllm", ("prefill", "decode"), memory_bytes=32 << 20)
    instance = manager.add(spec, locate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.run)
        with trio.fail_after(300):
            while instance.state == "loading":
                await changed.wait()
        assert instance.state == "ready", instance.reason
        capabilities = instance.capabilities
        assert capabilities is not None
        assert not capabilities.can_prefill
        assert "SlidingWindowSpec" in capabilities.obstacle
        assert capabilities.layout.layers == ()
        assert capabilities.prefill_tokens_per_s > 0
        assert capabilities.obstacle in "".join(warnings)

        assert instance.record().roles == ("decode",)
        assert manager.find("windows", "decode") is instance
        assert manager.find("windows", "prefill") is None

        tokens = pack_tokens(PROMPT)
        async with instance.request("answer") as handle:
            sampling = Sampling(max_tokens=4, temperature=0.0)
            await handle.send(Generate(request=handle.id, tokens=tokens, sampling=sampling))
            finished = await last_word(handle)
        assert isinstance(finished, Finished)
        assert finished.completion_tokens > 0

        async with instance.request("prefill") as handle:
            await handle.send(
                Prefill(request=handle.id, tokens=tokens, start=0, end=len(PROMPT), codec="raw")
            )
            failed = await last_word(handle)
        assert isinstance(failed, Failed)
        assert (failed.code, "SlidingWindowSpec" in failed.reason) == ("unsupported", True)
        nursery.cancel_scope.cancel()
