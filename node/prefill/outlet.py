"""How transfers leave this node: those that share an interface take turns (`FairQueue`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from node.prefill.sharing import STALL_S, FairQueue, Member
from node.transport.streams import BytesLike, ByteStream

__all__ = ["PIECE", "Outlet", "Outlets"]

PIECE: Final = 1 << 20
"""Bytes that are sent at a turn."""


class Outlets:
    """The outlets of a node, one for each interface that something leaves by."""

    def __init__(self) -> None:
        self._queues: dict[str, _Turns] = {}

    @contextmanager
    def transfer(self, interface: str, deadline: float, size: int) -> Iterator[Outlet]:
        """Send one transfer inside.

        Args:
            interface: that it leaves by.
            deadline: trio's time at which it must be over.
            size: bytes that it will send, about.
        """
        turns = self._queues.setdefault(interface, _Turns())
        member = Member(deadline, size)
        turns.queue.join(member)
        try:
            yield Outlet(turns, member)
        finally:
            turns.queue.leave(member)
            turns.grant()
            if not turns.queue and self._queues.get(interface) is turns:
                del self._queues[interface]


class Outlet:
    """Where one transfer's chunks go out; one task sends at a time."""

    def __init__(self, turns: _Turns, member: Member) -> None:
        self._turns = turns
        self._member = member

    async def send(self, stream: ByteStream, *buffers: BytesLike) -> None:
        """As `ByteStream.send`, by turns with the other transfers of the interface."""
        parts = [memoryview(each).cast("B") for each in buffers]
        while parts:
            # More than the receiver has room for would keep the turn and not use it.
            size = await stream.room()
            if len(self._turns.queue) > 1:
                size = min(size, PIECE)
            piece, parts = _split(parts, size)
            await self._turns.wait(self._member, sum(map(len, piece)))
            try:
                await stream.send(*piece)
            finally:
                self._turns.sent(self._member)


class _Turns:
    """Wakes those that `queue` grants their turns."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self._waiting: dict[Member, trio.Event] = {}

    async def wait(self, member: Member, size: int) -> None:
        """Return when a member may send `size` bytes."""
        if not size:
            await trio.lowlevel.checkpoint()
            return
        granted = self._waiting[member] = trio.Event()
        self.queue.ask(member, size)
        try:
            self.grant()
            while not granted.is_set():
                # A piece that stalls makes room, and nothing else tells of that.
                with trio.move_on_after(STALL_S):
                    await granted.wait()
                self.grant()
        except BaseException:
            self.sent(member)
            raise
        finally:
            del self._waiting[member]

    def sent(self, member: Member) -> None:
        """Take note that a member has had its turn, or wants none."""
        member.wanted = 0
        self.queue.sent(member, trio.current_time())
        self.grant()

    def grant(self) -> None:
        """Wake whoever may send."""
        for member in self.queue.grant(trio.current_time()):
            self._waiting[member].set()


def _split(parts: list[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """Cut some buffers in two, the first of which has up to `size` bytes."""
    first: list[memoryview] = []
    for index, part in enumerate(parts):
        if len(part) > size:
            return [*first, part[:size]], [part[size:], *parts[index + 1 :]]
        first.append(part)
        size -= len(part)
    return first, []
