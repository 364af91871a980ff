"""Sets of positions, as sorted ranges that neither overlap nor touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

__all__ = ["Range", "Ranges"]

Range = tuple[int, int]
"""Half-open: `(start, end)` with `start < end`."""


class Ranges:
    """A set of positions that grows and shrinks by ranges.

    An operation takes O(log n) for n ranges, plus the ranges that it merges or moves; adding at the
    end, which is what happens when nothing is lost, takes constant time beside that.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._ends, strict=True)

    def add(self, start: int, end: int) -> None:
        """Add the positions of `[start, end)`; those that are in it already do no harm."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        """Remove the positions of `[start, end)`; those that are not in it do no harm."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        if first >= last:
            return
        edges = [(self._starts[first], start), (end, self._ends[last - 1])]
        kept = [(low, high) for low, high in edges if low < high]
        self._starts[first:last] = [low for low, _ in kept]
        self._ends[first:last] = [high for _, high in kept]

    def gaps(self, start: int, end: int) -> list[Range]:
        """Return the ranges of `[start, end)` that are not in the set."""
        gaps: list[Range] = []
        for index in range(bisect_right(self._ends, start), len(self._starts)):
            low, high = self._starts[index], self._ends[index]
            if low >= end:
                break
            if low > start:
                gaps.append((start, low))
            start = high
        if start < end:
            gaps.append((start, end))
        return gaps

    def before(self, position: int) -> Iterator[Range]:
        """Yield the ranges that have positions before `position`, cut off there, the last first."""
        for index in range(bisect_left(self._starts, position) - 1, -1, -1):
            yield self._starts[index], min(self._ends[index], position)
