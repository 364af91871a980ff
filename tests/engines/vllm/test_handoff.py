"""The connector's bookkeeping, without vLLM."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engines.vllm.handoff import MAX_TOKENS, Handoff, OpenLayer, Registry, handoffs
from engines.vllm.jobs import PrefillJob
from engines.vllm.layouts import DeviceReading
from engines.vllm.schedule import BlockTables, Scheduled
from protocols.engine import Prefill, PrefillFinished, PrefillStarted
from protocols.kv_prefill.messages import pack_tokens
from tests.support.engines import MemoryOutbox, MemorySink


def step(
    new: dict[str, tuple[int, int, list[int]]] | None = None,
    cached: dict[str, tuple[int, int, list[int] | None]] | None = None,
    resumed: Sequence[str] = (),
) -> Any:
    """Make a scheduler's output: (computed, scheduled, block ids) per request."""
    new, cached = new or {}, cached or {}
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=computed, block_ids=(ids,))
            for name, (computed, _, ids) in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            resumed_req_ids=set(resumed),
            new_block_ids=[ids if ids is None else (ids,) for _, _, ids in cached.values()],
            num_computed_tokens=[computed for computed, _, _ in cached.values()],
        ),
        num_scheduled_tokens={name: count for name, (_, count, _) in (new | cached).items()},
    )


def test_blocks_are_added_as_a_request_grows() -> None:
    tables = BlockTables()
    assert list(tables.advance(step(new={"a": (0, 5, [4, 2])}))) == [
        Scheduled("a", 0, 5, ([4, 2],))
    ]
    grown = list(tables.advance(step(cached={"a": (5, 3, [9])})))
    assert grown == [Scheduled("a", 5, 3, ([4, 2, 9],))]
    assert list(tables.advance(step(cached={"a": (8, 1, None)}))) == [
        Scheduled("a", 8, 1, ([4, 2, 9],))
    ]


def test_blocks_are_replaced_after_a_preemption() -> None:
    tables = BlockTables()
    list(tables.advance(step(new={"a": (0, 5, [4, 2]), "b": (0, 1, [7])})))
    resumed = list(
        tables.advance(step(cached={"b": (1, 1, None), "a": (0, 3, [8])}, resumed=["a"]))
    )
    assert resumed == [Scheduled("b", 1, 1, ([7],)), Scheduled("a", 0, 3, ([8],))]


def test_the_schedulers_own_lists_are_not_grown() -> None:
    tables, ids = BlockTables(), [4]
    list(tables.advance(step(new={"a": (0, 5, ids)})))
    list(tables.advance(step(cached={"a": (5, 3, [9])})))
    assert ids == [4]


def test_forgotten_requests_are_gone() -> None:
    tables = BlockTables()
    list(tables.advance(step(new={"a": (0, 5, [4])})))
    tables.forget("a")
    tables.forget("a")
    with pytest.raises(KeyError):
        list(tables.advance(step(cached={"a": (5, 1, None)})))


def prefill_job(start: int, end: int, deliver: bool = True) -> tuple[PrefillJob, MemoryOutbox]:
    outbox = MemoryOutbox()
    request = Prefill(
        request="r",
        tokens=pack_tokens([1] * end),
        start=start,
        end=end,
        codec="raw",
        deliver=deliver,
    )
    return PrefillJob(request, MemorySink(outbox)), outbox


def test_each_step_brings_its_own_tokens() -> None:
    job, outbox = prefill_job(0, 1000)
    assert [job.scheduled(0, 512), job.scheduled(512, 488)] == [(0, 512), (512, 1000)]
    assert [each.cached for each in outbox.of(PrefillStarted)] == [0]


def test_first_step_brings_what_the_prefix_cache_held() -> None:
    job, outbox = prefill_job(100, 1000)
    assert job.scheduled(256, 300) == (100, 556)
    assert [each.cached for each in outbox.of(PrefillStarted)] == [256]


def test_nothing_before_the_start_or_after_the_end_is_wanted() -> None:
    job, _ = prefill_job(600, 700)
    wanted = [job.scheduled(0, 512), job.scheduled(512, 188), job.scheduled(700, 1)]
    assert [range(*part) for part in wanted] == [range(0), range(600, 700), range(0)]


def test_preempted_request_goes_on_where_it_was() -> None:
    job, _ = prefill_job(0, 1000)
    wanted = [
        job.scheduled(0, 512),
        job.scheduled(0, 400),
        job.scheduled(400, 400),
        job.scheduled(800, 200),
    ]
    assert [range(*part) for part in wanted] == [
        range(512),
        range(0),
        range(512, 800),
        range(800, 1000),
    ]


def test_nothing_is_wanted_without_deliver() -> None:
    job, outbox = prefill_job(0, 10, deliver=False)
    assert range(*job.scheduled(0, 10)) == range(0)
    job.advance(SimpleNamespace(finished=True))  # pyright: ignore[reportArgumentType]
    assert [each.computed for each in outbox.of(PrefillFinished)] == [10]


@dataclass
class CountingReader:
    """Reads arrays that name the block and the token they are from."""

    delay: bool = False

    def read(self, blocks: Sequence[int], start: int, end: int) -> DeviceReading:
        keys = np.array([[[blocks[token // 4], token]] for token in range(start, end)])
        event = SimpleNamespace(query=lambda: False, synchronize=lambda: None)
        return DeviceReading((keys, keys), event if self.delay else None)  # pyright: ignore[reportArgumentType]


@dataclass
class Wanting:
    """A job that wants a range, and keeps what it is given."""

    start: int
    end: int
    taken: list[tuple[int, int, int, Any]] = field(default_factory=list)
    failure: str = ""

    def scheduled(self, computed: int, count: int) -> tuple[int, int]:
        return self.start, self.end

    def take(self, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]) -> None:
        self.taken.append((layer, start, end, arrays[0].tolist()))

    def fail(self, reason: str) -> None:
        self.failure = reason


def handoff_of(*layers: str, delay: bool = False) -> Handoff:
    handoff = Handoff()
    handoff.open_layers(
        {name: OpenLayer(index, 0, CountingReader(delay)) for index, name in enumerate(layers)}
    )
    return handoff


def test_layers_are_handed_out_as_they_come() -> None:
    handoff, job = handoff_of("x", "y"), Wanting(3, 6)
    handoff.add("r", job)
    part = handoff.plan(Scheduled("r", 0, 6, ([8, 9],)))
    assert part is not None
    handoff.layer_computed("x", [part])
    assert job.taken == [(0, 3, 6, [[[8, 3]], [[9, 4]], [[9, 5]]])]
    handoff.layer_computed("y", [part])
    handoff.step_computed([part])
    assert [layer for layer, *_ in job.taken] == [0, 1]
    assert not job.failure


def test_copies_still_under_way_are_waited_for_at_the_end_of_the_step() -> None:
    handoff, job = handoff_of("x", delay=True), Wanting(0, 2)
    handoff.add("r", job)
    part = handoff.plan(Scheduled("r", 0, 2, ([8],)))
    assert part is not None
    handoff.layer_computed("x", [part])
    assert job.taken == []
    handoff.step_computed([part])
    assert len(job.taken) == 1


def test_layers_that_did_not_come_are_missed_in_that_step_only() -> None:
    handoff, job = handoff_of("x", "y"), Wanting(0, 2)
    handoff.add("r", job)
    part = handoff.plan(Scheduled("r", 0, 2, ([8],)))
    assert part is not None
    handoff.layer_computed("x", [part])
    handoff.layer_computed("not of the model", [part])
    handoff.step_computed([part])
    assert "1 of 2 layers" in job.failure
    assert "y" in job.failure


def test_long_ranges_come_in_pieces() -> None:
    handoff, job = handoff_of("x"), Wanting(0, 2 * MAX_TOKENS + 1)
    handoff.add("r", job)
    part = handoff.plan(Scheduled("r", 0, job.end, (list(range(MAX_TOKENS)),)))
    assert part is not None
    handoff.layer_computed("x", [part])
    assert [(start, end) for _, start, end, _ in job.taken] == [
        (0, MAX_TOKENS),
        (MAX_TOKENS, 2 * MAX_TOKENS),
        (2 * MAX_TOKENS, 2 * MAX_TOKENS + 1),
    ]


def test_unknown_and_removed_requests_want_nothing() -> None:
    handoff = handoff_of("x")
    assert handoff.plan(Scheduled("r", 0, 2, ([8],))) is None
    handoff.add("r", Wanting(0, 2))
    handoff.remove("r")
    assert handoff.plan(Scheduled("r", 0, 2, ([8],))) is None


def test_registry_finds_what_was_opened_until_it_is_closed() -> None:
    registry = Registry()
    (first, handoff), (second, _) = registry.open(), registry.open()
    assert first != second
    assert registry.find(first) is handoff
    registry.close(first)
    registry.close(first)
    with pytest.raises(LookupError, match=first):
        registry.find(first)
    with pytest.raises(LookupError):
        handoffs.find("")
