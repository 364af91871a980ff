"""`Coverage` against a model that keeps every position of every layer."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.cache import AttentionLayer, CacheLayout, StateLayer
from protocols.errors import LimitExceeded, Malformed, ProtocolError
from protocols.kv_prefill.coverage import Coverage
from protocols.kv_prefill.messages import Chunk
from tests.support.caches import HYBRID

START, END = 4, 24
STATE, STATELESS = 3, 4


def chunk(layer: int, start: int, end: int, layout: CacheLayout = HYBRID) -> Chunk:
    size = layout.nbytes(layer, end - start)
    return Chunk(layer, start, end, "raw", size, size, bytes(8))


class Model:
    """The definition, word for word."""

    def __init__(self) -> None:
        self.tokens: list[set[int]] = [set() for _ in HYBRID.layers]
        self.states: set[int] = set()

    def add(self, layer: int, start: int, end: int) -> None:
        self.tokens[layer] |= set(range(start, end))
        if layer == STATE:
            self.states.add(end)

    def remove(self, layer: int, start: int, end: int) -> None:
        self.tokens[layer] -= set(range(start, end))
        if layer == STATE:
            self.states.discard(end)

    def missing(self, layer: int, end: int) -> set[int]:
        if layer == STATELESS:
            return set()
        needed = set(range(*HYBRID.layers[layer].needed(START, end)))
        if layer == STATE:
            return set() if end in self.states else needed
        return needed - self.tokens[layer]

    def usable_end(self) -> int:
        layers = range(len(HYBRID.layers))
        usable = [
            p for p in range(START + 1, END + 1) if not any(self.missing(i, p) for i in layers)
        ]
        return max(usable, default=START)


spans = st.tuples(st.integers(START, END - 1), st.integers(1, END)).map(
    lambda pair: (pair[0], min(END, pair[0] + pair[1]))
)
layers = st.integers(0, len(HYBRID.layers) - 1)
steps = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "remove"]), layers, spans), max_size=40
)


@given(steps, st.sampled_from([0, 8, 12, END]))
@settings(max_examples=300)
def test_against_the_model(steps: list[tuple[str, int, tuple[int, int]]], seeded: int) -> None:
    coverage, model = Coverage(HYBRID, START, END), Model()
    # Most random steps leave the first layers with holes: begin with a usable prefix at times.
    first = [("add", layer, (START, seeded)) for layer in range(len(HYBRID.layers)) if seeded]
    for step, layer, (start, end) in first + steps:
        if step == "add":
            coverage.add(chunk(layer, start, end))
            model.add(layer, start, end)
        else:
            coverage.remove(layer, start, end)
            model.remove(layer, start, end)
    assert coverage.usable_end == model.usable_end()
    assert coverage.covered_tokens == model.usable_end() - START
    assert coverage.complete == (model.usable_end() == END)
    missing = False
    for layer in range(len(HYBRID.layers)):
        found = {p for low, high in coverage.missing(layer) for p in range(low, high)}
        assert found == model.missing(layer, END)
        missing = missing or bool(found)
    assert coverage.complete is not missing


def test_only_what_is_needed_makes_it_complete() -> None:
    coverage = Coverage(HYBRID, START, END)
    coverage.add(chunk(0, START, END))
    coverage.add(chunk(1, END - 5, END))
    coverage.add(chunk(2, START, END))
    assert not coverage.complete
    assert coverage.describe_missing() == f"layer 3 lacks [{END - 1}, {END})"
    coverage.add(chunk(STATE, START, END))
    assert coverage.complete
    assert coverage.describe_missing() == "nothing is missing"
    coverage.remove(1, END - 5, END - 4)
    assert coverage.usable_end == START


def test_what_is_missing_is_named() -> None:
    coverage = Coverage(HYBRID, START, END)
    for start in range(START, END, 2):
        coverage.add(chunk(0, start, start + 1))
    assert coverage.describe_missing() == (
        "layer 0 lacks [5, 6), [7, 8), [9, 10), ..., and 3 more of 5 layers lack some"
    )


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (chunk(0, START - 1, END), Malformed),
        (chunk(0, START, END + 1), Malformed),
        (msgspec.structs.replace(chunk(0, START, END), layer=9), Malformed),
        (msgspec.structs.replace(chunk(0, START, END), end=START), Malformed),
        (msgspec.structs.replace(chunk(0, START, END), end=END - 1), Malformed),
        (msgspec.structs.replace(chunk(STATE, START, END), raw_size=0, size=0), Malformed),
        (msgspec.structs.replace(chunk(0, START, END), size=1 << 20), LimitExceeded),
    ],
)
def test_a_chunk_of_something_else_is_not_counted(bad: Chunk, error: type[ProtocolError]) -> None:
    coverage = Coverage(HYBRID, START, END)
    with pytest.raises(error):
        coverage.add(bad)
    assert list(coverage.missing(0)) == [(START, END)]


def test_an_empty_range_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="nothing to cover"):
        Coverage(HYBRID, END, END)


def test_a_long_prompt_in_small_chunks() -> None:
    layout = CacheLayout("bfloat16", (AttentionLayer(1, 1, 1),) * 4 + (StateLayer(()),), "f")
    end = 20_000
    coverage = Coverage(layout, 0, end)
    for start in range(0, end, 16):
        for layer in range(4):
            coverage.add(chunk(layer, start, start + 16, layout))
        assert coverage.usable_end == start + 16
    assert coverage.complete
