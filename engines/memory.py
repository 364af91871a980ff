"""The memory that an engine process shares with its node, as the engine uses it."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence

import numpy as np

from protocols.blocks import Blocks
from protocols.errors import Malformed

__all__ = ["SharedMemory"]

_BEING_WRITTEN = None
"""Owner of a block that nobody may free but who is filling it."""


class SharedMemory:
    """A region that this process writes payloads to, and one that it reads payloads from.

    Every method may be called from any thread.

    Args:
        to_node: file descriptor and size of the first region.
        to_engine: file descriptor and size of the second.

    Raises:
        OSError, ValueError: they cannot be mapped, or are smaller than was said.
    """

    def __init__(self, to_node: tuple[int, int], to_engine: tuple[int, int]) -> None:
        self._to_node = np.frombuffer(_map(*to_node), np.uint8)
        self._to_engine = memoryview(_map(*to_engine))
        self._blocks = Blocks(to_node[1])
        self._lock = threading.Lock()

    def put(self, parts: Sequence[memoryview]) -> int | None:
        """Copy the parts of a payload one after the other into a new block.

        The block is the caller's, until `assign`.

        Returns:
            Where the payload is, or `None` if there is no room for it.
        """
        size = sum(part.nbytes for part in parts)
        if size == 0:
            return None
        with self._lock:
            at = self._blocks.take(size, _BEING_WRITTEN)
        if at is None:
            return None
        end = at
        for part in parts:
            start, end = end, end + part.nbytes
            # numpy lets other threads run meanwhile, where assigning to a memoryview does not.
            np.copyto(self._to_node[start:end], np.frombuffer(part, np.uint8))
        return at

    def assign(self, at: int, request: str) -> None:
        """Let the node say when the block at `at` can be used again."""
        with self._lock:
            self._blocks.assign(at, request)

    def drop(self, at: int) -> None:
        """Free a block that has not been assigned."""
        with self._lock:
            self._blocks.give_back(at, _BEING_WRITTEN)

    def give_back(self, at: int, request: str) -> bool:
        """Free the block at `at`; return False, and do nothing, if the request has none there."""
        with self._lock:
            return self._blocks.give_back(at, request)

    def give_back_all(self, request: str) -> None:
        """Free every block of a request."""
        with self._lock:
            self._blocks.give_back_all(request)

    @property
    def used(self) -> int:
        """Bytes of the first region that are in use."""
        with self._lock:
            return self._blocks.used

    def payload(self, at: int, size: int) -> memoryview:
        """Return a payload that the node has put into the second region.

        Raises:
            Malformed: it would not lie inside the region.
        """
        if at < 0 or at + size > len(self._to_engine):
            raise Malformed(f"a payload of {size} bytes at {at} of {len(self._to_engine)}")
        return self._to_engine[at : at + size]


def _map(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size)
