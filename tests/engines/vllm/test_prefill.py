"""The caches that vLLM hands out, against transformers' own computation in float32."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engines.vllm.handoff import OpenLayer
from engines.vllm.layouts import PackedReader
from engines.vllm.packing import PackedOrder
from engines.vllm.start import CPU_STEP_TOKENS
from protocols.chat import Sampling
from protocols.engine import Failed, Generate, Prefill, PrefillFinished, PrefillStarted
from protocols.kv_prefill.messages import pack_tokens
from tests.engines.vllm.conftest import BLOCK, Cache, Reference, Running
from tests.support.engines import Emitted, answer_of, drive

pytestmark = pytest.mark.engine

FIRST_LAYER_ERROR = 0.005
"""Relative: bfloat16 keeps 8 bits, so each rounding costs about 0.002."""
MEDIAN_ERROR, ERROR = 0.04, 0.08
"""Of the layers: roundings add up on the way, most where one or two tokens are all there is."""

_names = (f"request-{number}" for number in itertools.count())


def submit(
    running: Running,
    tokens: list[int],
    start: int = 0,
    end: int | None = None,
    deliver: bool = True,
    reuse: bool = True,
) -> str:
    request = Prefill(
        request=next(_names),
        tokens=pack_tokens(tokens),
        start=start,
        end=len(tokens) if end is None else end,
        codec="raw",
        deliver=deliver,
        reuse=reuse,
    )
    running.engine.prefill(request)
    return request.request


def prefill(running: Running, tokens: list[int], **options: Any) -> str:
    """Submit a prefill (see `submit`) and see it through."""
    name = submit(running, tokens, **options)
    drive(running.engine)
    return name


def finished(running: Running, name: str) -> PrefillFinished:
    assert not running.outbox.of(Failed, name)
    (message,) = running.outbox.of(PrefillFinished, name)
    return message


def assemble(running: Running, name: str, start: int, end: int) -> Cache:
    """Put a request's chunks together; every position of every layer must have come once."""
    chunks = running.sink.chunks[name]
    return [
        _assemble_layer([chunk for chunk in chunks if chunk.layer == layer], start, end)
        for layer in range(len(running.capabilities.layout.layers))
    ]


def _assemble_layer(
    chunks: Sequence[Emitted], start: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    ordered = sorted(chunks, key=lambda chunk: chunk.start)
    assert [chunk.start for chunk in ordered] == [start, *(chunk.end for chunk in ordered[:-1])]
    assert ordered[-1].end == end
    assert all(
        array.shape == (chunk.end - chunk.start, 3, 64) and array.dtype == np.uint16
        for chunk in chunks
        for array in chunk.arrays
    )
    keys, values = (np.concatenate([chunk.arrays[side] for chunk in ordered]) for side in (0, 1))
    return keys, values


def errors(handed: Cache, expected: Cache, start: int, end: int) -> list[float]:
    """Relative error of each layer, the larger of keys' and values'."""
    return [
        max(
            float(np.linalg.norm(_float32(bits) - exact[start:end]))
            / float(np.linalg.norm(exact[start:end]))
            for bits, exact in zip(layer, reference, strict=True)
        )
        for layer, reference in zip(handed, expected, strict=True)
    ]


def _float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def check(
    running: Running,
    reference: Reference,
    name: str,
    tokens: list[int],
    start: int = 0,
    end: int | None = None,
) -> None:
    """Check that exactly `[start, end)` came, and that it is right."""
    finished(running, name)
    end = len(tokens) if end is None else end
    handed = assemble(running, name, start, end)
    found = errors(handed, reference.prefill(tuple(tokens)), start, end)
    assert found[0] < FIRST_LAYER_ERROR
    assert np.median(found) < MEDIAN_ERROR
    assert max(found) < ERROR


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 300, 1200])
def test_cache_is_what_transformers_computes(
    running: Running, reference: Reference, length: int
) -> None:
    tokens = running.prompt(length, 30)
    name = prefill(running, tokens, reuse=False)
    check(running, reference, name, tokens)
    assert finished(running, name).computed == length


def test_long_prompt_is_handed_out_while_it_is_being_computed(running: Running) -> None:
    name = submit(running, running.prompt(1200, 1), reuse=False)
    running.engine.step()
    assert {chunk.end for chunk in running.sink.chunks[name]} == {CPU_STEP_TOKENS}
    assert not running.outbox.of(PrefillFinished, name)
    drive(running.engine)
    assert [chunk.layer for chunk in running.sink.chunks[name][:30]] == list(range(30))


def test_prompts_in_one_batch_each_get_their_own(running: Running, reference: Reference) -> None:
    batch = [running.prompt(length, length % 50) for length in (100, 300, 7, 1030)]
    names = [submit(running, tokens, reuse=False) for tokens in batch]
    drive(running.engine)
    for name, tokens in zip(names, batch, strict=True):
        check(running, reference, name, tokens)


@pytest.mark.parametrize("start", [0, 100, 256, 299])
def test_prefix_from_the_cache_is_handed_out_too(
    running: Running, reference: Reference, start: int
) -> None:
    tokens = running.prompt(300, 2)
    prefill(running, tokens)
    name = prefill(running, tokens, start=start)
    (started,) = running.outbox.of(PrefillStarted, name)
    assert started.cached == 2 * BLOCK
    assert finished(running, name).computed == len(tokens) - 2 * BLOCK
    check(running, reference, name, tokens, start)


def test_cached_and_computed_caches_are_identical(running: Running) -> None:
    tokens = running.prompt(290, 3)
    first, second = prefill(running, tokens), prefill(running, tokens)
    for one, other in zip(
        assemble(running, first, 0, 2 * BLOCK + 34),
        assemble(running, second, 0, 2 * BLOCK + 34),
        strict=True,
    ):
        assert np.array_equal(one[0][: 2 * BLOCK], other[0][: 2 * BLOCK])
        assert np.array_equal(one[1][: 2 * BLOCK], other[1][: 2 * BLOCK])


def test_prefix_cache_is_not_read_without_reuse(running: Running) -> None:
    tokens = running.prompt(300, 4)
    prefill(running, tokens)
    name = prefill(running, tokens, reuse=False)
    (started,) = running.outbox.of(PrefillStarted, name)
    assert started.cached == 0
    assert finished(running, name).computed == 300


def test_only_what_was_asked_for_is_computed_and_handed_out(
    running: Running, reference: Reference
) -> None:
    tokens = running.prompt(700, 5)
    name = prefill(running, tokens, start=130, end=600, reuse=False)
    assert finished(running, name).computed == 600
    check(running, reference, name, tokens, 130, 600)


def test_nothing_is_handed_out_without_deliver(running: Running) -> None:
    name = prefill(running, running.prompt(300, 6), deliver=False, reuse=False)
    assert finished(running, name).computed == 300
    assert running.sink.chunks[name] == []


def test_preempted_prompt_is_handed_out_whole(running: Running, reference: Reference) -> None:
    """The answer grows by a block just when the prompt needs the rest of the pool."""
    answering = next(_names)
    running.engine.generate(
        Generate(
            request=answering,
            tokens=pack_tokens(running.prompt(3 * BLOCK - 1, 7)),
            sampling=Sampling(max_tokens=6, temperature=0.0),
        )
    )
    running.engine.step()
    tokens = running.prompt(1990, 8)
    name = submit(running, tokens, reuse=False)
    drive(running.engine)
    assert finished(running, name).computed > len(tokens), "nothing was preempted"
    check(running, reference, name, tokens)
    assert answer_of(running.outbox, answering).finished.completion_tokens > 0


def test_cancelled_prompt_ends_within_a_step_and_frees_its_blocks(running: Running) -> None:
    free = free_blocks(running)
    name = submit(running, running.prompt(1500, 9), reuse=False)
    running.engine.step()
    assert free_blocks(running) < free
    running.engine.cancel(name)
    assert not running.engine.step()
    assert free_blocks(running) == free
    assert name in running.sink.discarded
    assert not running.outbox.of(PrefillFinished, name)
    running.engine.cancel(name)


def test_cancelling_one_prompt_leaves_the_others(running: Running, reference: Reference) -> None:
    tokens = running.prompt(600, 11)
    doomed = submit(running, running.prompt(600, 10), reuse=False)
    name = submit(running, tokens, reuse=False)
    running.engine.step()
    running.engine.cancel(doomed)
    drive(running.engine)
    check(running, reference, name, tokens)


def test_layers_that_never_arrive_fail_the_request(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engines.vllm.connector import HandoffConnector

    save = HandoffConnector.save_kv_layer

    def skip_one(self: HandoffConnector, layer_name: str, *rest: object) -> None:
        if layer_name != "model.layers.7.self_attn.attn":
            save(self, layer_name, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(HandoffConnector, "save_kv_layer", skip_one)
    name = prefill(running, running.prompt(600, 12), reuse=False)
    (failed,) = running.outbox.of(Failed, name)
    assert failed.code == "engine"
    assert "model.layers.7.self_attn.attn" in failed.reason
    assert not running.outbox.of(PrefillFinished, name)
    assert name in running.sink.discarded
    assert not running.engine.step()


def test_comparison_notices_packed_blocks(
    running: Running, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: read as if blocks were not packed, the caches must not agree."""
    handoff = running.engine._handoff
    plain = PackedOrder(np.arange(BLOCK * 64).reshape(BLOCK, 64), ((BLOCK, 64),), ((64, 1),))
    unpacked = {
        name: OpenLayer(
            layer.index,
            layer.group,
            PackedReader(handoff.caches[name], BLOCK, (plain, plain)),
        )
        for name, layer in handoff._layers.items()
    }
    monkeypatch.setattr(handoff, "_layers", unpacked)
    tokens = running.prompt(300, 13)
    handed = assemble(running, prefill(running, tokens, reuse=False), 0, 300)
    assert min(errors(handed, reference.prefill(tuple(tokens)), 0, 300)) > 0.3


def free_blocks(running: Running) -> int:
    scheduler = running.engine._llm.engine_core.engine_core.scheduler  # pyright: ignore[reportAttributeAccessIssue]
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
