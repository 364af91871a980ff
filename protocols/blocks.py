"""Which parts of a region of memory are in use, and whose they are; without the memory itself."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["ALIGNMENT", "Blocks"]

ALIGNMENT: Final = 64
"""Bytes. Blocks start at multiples of it, so that every element of a cache is aligned."""


class Blocks:
    """Blocks of a region of `size` bytes.

    A block is taken where there is room for it closest to the start, so that what is used stays
    small, and warm in the processor's caches. Not thread-safe.

    Args:
        size: of the region in bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        """Bytes of all blocks, with what their alignment costs."""
        self._starts: list[int] = [0] if size else []
        """Of the free ranges, ascending; no two of them touch."""
        self._ends: list[int] = [size] if size else []
        self._blocks: dict[int, tuple[int, str | None]] = {}
        """Size, with what alignment costs, and owner by start."""

    def take(self, size: int, owner: str | None) -> int | None:
        """Take a block of `size` bytes.

        Args:
            size: in bytes.
            owner: whose it is; `None` is an owner too, whom nobody can claim to be in a message.

        Returns:
            Where it starts, or `None` if nowhere has room for it.

        Raises:
            ValueError: not a positive size.
        """
        if size < 1:
            raise ValueError(f"a block of {size} bytes")
        size = -(-size // ALIGNMENT) * ALIGNMENT
        ranges = zip(self._starts, self._ends, strict=True)
        index = next((at for at, (low, high) in enumerate(ranges) if high - low >= size), None)
        if index is None:
            return None
        start = self._starts[index]
        if self._ends[index] - start == size:
            del self._starts[index], self._ends[index]
        else:
            self._starts[index] = start + size
        self._blocks[start] = size, owner
        self.used += size
        return start

    def assign(self, start: int, owner: str | None) -> None:
        """Give a block to another owner.

        Raises:
            KeyError: no block starts there.
        """
        self._blocks[start] = self._blocks[start][0], owner

    def give_back(self, start: int, owner: str | None) -> bool:
        """Free the block at `start`; return False, and do nothing, if `owner` has none there."""
        block = self._blocks.get(start)
        if block is None or block[1] != owner:
            return False
        size, _ = self._blocks.pop(start)
        self.used -= size
        end = start + size
        index = bisect_left(self._starts, start)
        joins_next = index < len(self._starts) and self._starts[index] == end
        joins_last = index > 0 and self._ends[index - 1] == start
        if joins_last and joins_next:
            del self._ends[index - 1], self._starts[index]
        elif joins_last:
            self._ends[index - 1] = end
        elif joins_next:
            self._starts[index] = start
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)
        return True

    def give_back_all(self, owner: str | None) -> None:
        """Free every block of `owner`."""
        for start in [start for start, (_, whose) in self._blocks.items() if whose == owner]:
            self.give_back(start, owner)
