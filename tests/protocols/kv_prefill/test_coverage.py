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
STATE = 3
LAYOUTS = [HYBRID, *(msgspec.structs.replace(HYBRID, layers=(one,)) for one in HYBRID.layers)]


def chunk(layer: int, start: int, end: int, layout: CacheLayout = HYBRID) -> Chunk:
    size = layout.nbytes(layer, end - start)
    return Chunk(layer, start, end, "raw", size, size, bytes(8))


class Model:
    """The definition, word for word."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.tokens: list[set[int]] = [set() for _ in layout.layers]
        self.states: list[set[int]] = [set() for _ in layout.layers]

    def add(self, layer: int, start: int, end: int) -> None:
        self.tokens[layer] |= set(range(start, end))
        self.states[layer].add(end)

    def remove(self, layer: int, start: int, end: int) -> None:
        self.tokens[layer] -= set(range(start, end))
        self.states[layer].discard(end)

    def missing(self, layer: int, end: int) -> set[int]:
        needed = set(range(*self.layout.layers[layer].needed(START, end)))
        if not self.layout.nbytes(layer, 1):
            return set()
        if isinstance(self.layout.layers[layer], StateLayer):
            return set() if end in self.states[layer] else needed
        return needed - self.tokens[layer]

    def usable_end(self) -> int:
        layers = range(len(self.layout.layers))
        for end in range(END, START, -1):
            if not any(self.missing(layer, end) for layer in layers):
                return end
        return START


spans = st.tuples(st.integers(START, END - 1), st.integers(1, END)).map(
    lambda pair: (pair[0], min(END, pair[0] + pair[1]))
)


@given(st.data(), st.sampled_from([START, 8, 12, END]))
@settings(max_examples=400)
def test_against_the_model(data: st.DataObject, seeded: int) -> None:
    layout = data.draw(st.sampled_from(LAYOUTS))
    layers = range(len(layout.layers))
    coverage, model = Coverage(layout, START, END), Model(layout)
    # Random steps alone would leave holes in some layer: begin with a usable prefix at times.
    steps = [("add", layer, (START, seeded)) for layer in layers if seeded > START]
    step = st.tuples(st.sampled_from(["add", "add", "remove"]), st.sampled_from(layers), spans)
    for kind, layer, (start, end) in steps + data.draw(st.lists(step, max_size=4 * len(layers))):
        if kind == "add":
            coverage.add(chunk(layer, start, end, layout))
            model.add(layer, start, end)
        else:
            coverage.remove(layer, start, end)
            model.remove(layer, start, end)
    assert coverage.usable_end == model.usable_end()
    assert coverage.covered_tokens == model.usable_end() - START
    assert coverage.complete == (model.usable_end() == END)
    for layer in layers:
        found = {p for low, high in coverage.missing(layer) for p in range(low, high)}
        assert found == model.missing(layer, END)
    assert coverage.complete != any(coverage.missing(layer) for layer in layers)


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
