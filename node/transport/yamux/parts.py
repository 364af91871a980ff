"""Buffers that stand one behind another, cut without copying."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["first_bytes", "without_first_bytes"]


def first_bytes(parts: Sequence[memoryview], n: int) -> list[memoryview]:
    """Return the first `n` bytes of `parts`."""
    first: list[memoryview] = []
    for part in parts:
        if n <= len(part):
            first.append(part[:n])
            break
        first.append(part)
        n -= len(part)
    return first


def without_first_bytes(parts: Sequence[memoryview], n: int) -> list[memoryview]:
    """Return `parts` without their first `n` bytes."""
    for index, part in enumerate(parts):
        if n < len(part):
            return [part[n:], *parts[index + 1 :]]
        n -= len(part)
    return []
