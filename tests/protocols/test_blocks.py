"""Blocks of a region: they never overlap, and what is given back can be taken again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocols.blocks import ALIGNMENT, Blocks

SIZE = 64 * ALIGNMENT
OWNERS = st.sampled_from(["a", "b", None])


class Region(RuleBasedStateMachine):
    """Compares `Blocks` with a byte map that says whose every byte is."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(SIZE)
        self.taken: dict[int, tuple[int, str | None]] = {}

    def free_runs(self) -> list[tuple[int, int]]:
        """Return the free ranges as a scan over every unit finds them."""
        owned = [False] * (SIZE // ALIGNMENT + 1)
        owned[-1] = True
        for start, (size, _) in self.taken.items():
            for unit in range(start // ALIGNMENT, (start + size) // ALIGNMENT):
                assert not owned[unit], "two blocks overlap"
                owned[unit] = True
        runs, begin = [], 0
        for unit, is_owned in enumerate(owned):
            if is_owned:
                if unit > begin:
                    runs.append((begin * ALIGNMENT, unit * ALIGNMENT))
                begin = unit + 1
        return runs

    @rule(size=st.integers(1, SIZE + ALIGNMENT), owner=OWNERS)
    def take(self, size: int, owner: str | None) -> None:
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        expected = next((low for low, high in self.free_runs() if high - low >= rounded), None)
        start = self.blocks.take(size, owner)
        assert start == expected
        if start is not None:
            assert start % ALIGNMENT == 0
            self.taken[start] = rounded, owner

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), owner=OWNERS)
    def give_back(self, data: st.DataObject, owner: str | None) -> None:
        start = data.draw(st.sampled_from(sorted(self.taken)))
        whose = self.taken[start][1]
        assert self.blocks.give_back(start, owner) == (whose == owner)
        if whose == owner:
            del self.taken[start]

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), owner=OWNERS)
    def assign(self, data: st.DataObject, owner: str | None) -> None:
        start = data.draw(st.sampled_from(sorted(self.taken)))
        self.blocks.assign(start, owner)
        self.taken[start] = self.taken[start][0], owner

    @rule(start=st.integers(-SIZE, 2 * SIZE), owner=OWNERS)
    def give_back_what_is_none(self, start: int, owner: str | None) -> None:
        if start not in self.taken:
            assert not self.blocks.give_back(start, owner)

    @rule(owner=OWNERS)
    def give_back_all(self, owner: str | None) -> None:
        self.blocks.give_back_all(owner)
        self.taken = {start: block for start, block in self.taken.items() if block[1] != owner}

    @invariant()
    def agrees(self) -> None:
        assert self.blocks.used == sum(size for size, _ in self.taken.values())
        assert list(zip(self.blocks._starts, self.blocks._ends, strict=True)) == self.free_runs()


TestRegion = Region.TestCase
TestRegion.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 9 * ALIGNMENT), max_size=40))
def test_all_given_back_is_one_free_range_again(sizes: list[int]):
    blocks = Blocks(SIZE)
    for size in sizes:
        blocks.take(size, "a")
    blocks.give_back_all("a")
    assert blocks.take(SIZE, "b") == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_of_no_bytes_is_a_mistake(size: int):
    with pytest.raises(ValueError, match="a block of"):
        Blocks(SIZE).take(size, "a")


def test_a_region_of_nothing_has_room_for_nothing():
    assert Blocks(0).take(1, "a") is None
