"""A prefill that is going on somewhere, as the events of `protocols.kv_prefill.client`."""

from __future__ import annotations

from typing import Protocol

from protocols.kv_prefill.client import ChunkArrived, Event
from protocols.kv_prefill.coverage import Coverage

__all__ = ["Buffers", "PrefillSource", "PrivateBuffers"]


class Buffers(Protocol):
    """Memory for payloads that are going to be injected, as a `RequestHandle` has it."""

    async def take(self, size: int) -> memoryview:
        """Return `size` writable bytes, whatever is in them; wait for them for a while."""
        ...

    def give_back(self, payload: memoryview) -> None:
        """Say that memory from `take` is not in use; no error if it has been injected."""
        ...


class PrivateBuffers:
    """Memory of this process, new for each payload."""

    async def take(self, size: int) -> memoryview:
        """See `Buffers.take`."""
        return memoryview(bytearray(size))

    def give_back(self, payload: memoryview) -> None:
        """See `Buffers.give_back`: it goes with the last reference to it."""


class PrefillSource(Protocol):
    """Where chunks come from: another node's engine, or another engine of this node."""

    @property
    def coverage(self) -> Coverage:
        """What has arrived."""
        ...

    async def next_event(self) -> Event:
        """Wait for the next event. The last one is `Refused`, `Completed` or `TransferFailed`.

        The payload of a chunk stays as it is until the chunk is released. Any number of chunks may
        be held at a time, but a source whose chunks are not released stops computing at some point.
        """
        ...

    async def release(self, chunk: ChunkArrived) -> None:
        """Say that a chunk has been dealt with: the memory of its payload may take another's.

        Once for each chunk, in any order; not for those that are left when the source is left.
        """
        ...
