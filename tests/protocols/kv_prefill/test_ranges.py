"""`Ranges` is a set of positions."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from protocols.kv_prefill.ranges import Range, Ranges

SPAN = 30
ranges = st.tuples(st.integers(0, SPAN - 1), st.integers(1, SPAN)).map(
    lambda pair: (pair[0], min(SPAN, pair[0] + pair[1]))
)
operations = st.lists(st.tuples(st.sampled_from(["add", "remove"]), ranges), max_size=20)


def positions(parts: list[Range]) -> set[int]:
    return {position for start, end in parts for position in range(start, end)}


@given(operations, ranges, st.integers(0, SPAN))
def test_against_a_set(steps: list[tuple[str, Range]], query: Range, before: int) -> None:
    found, model = Ranges(), set[int]()
    for step, (start, end) in steps:
        if step == "add":
            found.add(start, end)
            model |= set(range(start, end))
        else:
            found.remove(start, end)
            model -= set(range(start, end))
    parts = list(found)
    assert positions(parts) == model
    assert all(low < high for low, high in parts)
    assert all(one[1] < two[0] for one, two in pairwise(parts))
    assert positions(found.gaps(*query)) == set(range(*query)) - model
    assert positions(list(found.before(before))) == {p for p in model if p < before}
    assert list(found.before(before)) == sorted(found.before(before), reverse=True)
