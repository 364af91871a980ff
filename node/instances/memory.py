"""The memory that a node shares with one engine process, as the node uses it.

A payload in it is a `memoryview` like any other. Those that the engine has to be told of, or is to
have back, are recognised by being the very objects that `EngineMemory` has handed out.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import tempfile
from array import array
from typing import Final, NamedTuple

import msgspec
import trio
from loguru import logger

from protocols.blocks import Blocks
from protocols.engine import Share
from protocols.errors import Malformed
from protocols.framing import encode_frame

__all__ = ["REGION_SIZE", "EngineMemory", "share_memory"]

REGION_SIZE: Final = 64 << 20
"""Bytes for each direction: as many as an engine may have underway for one request, or hold in its
inbox. Only what is used is ever backed by memory."""

ROOM_PATIENCE_S: Final = 2.0
"""For room in a region that is full. Then a payload goes over the socket: the engine may be in a
step that takes long, and what comes after the payload may be what ends it."""

_LENT: Final = None
"""Owner of a block that the engine has not been told of."""


class _Lent(NamedTuple):
    """A payload in shared memory that somebody in the node holds."""

    payload: memoryview
    at: int
    request: str


class EngineMemory:
    """A region that the engine writes payloads to, and one that the node writes payloads to.

    Args:
        to_node: the first; its blocks are the engine's to manage.
        to_engine: the second.
    """

    def __init__(self, to_node: mmap.mmap, to_engine: mmap.mmap) -> None:
        self.usable = False
        """Whether the engine has said that it can use the memory."""
        self._to_node = memoryview(to_node)
        self._to_engine = memoryview(to_engine)
        self._blocks = Blocks(len(to_engine))
        # By the id of the payload, which is the object's own as long as it is in here.
        self._arrived: dict[int, _Lent] = {}
        self._lent: dict[int, _Lent] = {}
        self._room = trio.Event()

    @property
    def used(self) -> int:
        """Bytes of the second region that are in use."""
        return self._blocks.used

    def arrived(self, request: str, at: int, size: int) -> memoryview:
        """Return the payload that the engine has put at `at`.

        Raises:
            Malformed: it would not lie inside the region.
        """
        if not 0 <= at <= len(self._to_node) - size:
            raise Malformed(f"a payload of {size} bytes at {at} of {len(self._to_node)}")
        payload = self._to_node[at : at + size]
        self._arrived[id(payload)] = _Lent(payload, at, request)
        return payload

    def acknowledged(self, payload: memoryview) -> int | None:
        """Return where a payload that has arrived is, for the engine to be told, and forget it."""
        held = self._arrived.pop(id(payload), None)
        return None if held is None else held.at

    def unacknowledged(self, request: str) -> list[memoryview]:
        """Return the request's payloads that have arrived and that the engine has not back."""
        return [each.payload for each in self._arrived.values() if each.request == request]

    def take(self, size: int, request: str) -> memoryview | None:
        """Return room for a payload, or `None` if there is none.

        Its memory is undefined. It is the request's until `sent` or `give_back`.
        """
        if not self.usable or size < 1:
            return None
        at = self._blocks.take(size, _LENT)
        if at is None:
            return None
        payload = self._to_engine[at : at + size]
        self._lent[id(payload)] = _Lent(payload, at, request)
        return payload

    async def take_soon(self, size: int, request: str) -> memoryview | None:
        """Return room for a payload as `take` does, but wait for it for a while.

        An engine that is slower than the network is thereby waited for where the network notices.
        """
        payload = self.take(size, request)
        with trio.move_on_after(ROOM_PATIENCE_S):
            while payload is None and self.usable and size <= self._blocks.size:
                await self._room.wait()
                payload = self.take(size, request)
        return payload

    def close(self) -> None:
        """Lend nothing more: the engine has ended."""
        self.usable = False
        self._there_is_room()

    def sent(self, payload: memoryview) -> int | None:
        """Return where a payload made by `take` is, which the engine is to free from now on."""
        held = self._lent.pop(id(payload), None)
        if held is None:
            return None
        self._blocks.assign(held.at, held.request)
        return held.at

    def give_back(self, payload: memoryview) -> None:
        """Free a payload made by `take`, if the engine has not been told of it."""
        held = self._lent.pop(id(payload), None)
        if held is not None:
            self._blocks.give_back(held.at, _LENT)
            self._there_is_room()

    def freed(self, request: str, at: int) -> None:
        """Hear that the engine will not read a payload again."""
        if self._blocks.give_back(at, request):
            self._there_is_room()
        else:
            # It crossed the end of the request, after which all is free.
            logger.debug("request {} has nothing at {} that could be freed", request, at)

    def freed_all(self, request: str) -> None:
        """Hear that the engine will read nothing of a request again."""
        self._blocks.give_back_all(request)
        self._there_is_room()

    def forget(self, request: str) -> None:
        """Give back what is held here of a request that is over."""
        for payload in self.unacknowledged(request):
            self.acknowledged(payload)
        for held in [each for each in self._lent.values() if each.request == request]:
            self.give_back(held.payload)

    def _there_is_room(self) -> None:
        self._room.set()
        self._room = trio.Event()


def share_memory(sock: socket.socket, size: int = REGION_SIZE) -> EngineMemory | None:
    """Make memory and offer it to the engine at the other end of `sock`, as its first message.

    The memory has no name, so nothing is left of it when both processes have ended, however.

    Returns:
        The memory, which is of use once the engine has agreed; `None` where there is none to have.
    """
    descriptors: list[int] = []
    try:
        descriptors.append(_make_region("to-node", size))
        descriptors.append(_make_region("to-engine", size))
        memory = EngineMemory(*(mmap.mmap(descriptor, size) for descriptor in descriptors))
        frame = encode_frame(msgspec.msgpack.Encoder(), Share(to_node=size, to_engine=size))
        rights = array("i", descriptors)
        sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as error:
        logger.warning("no memory can be shared with the engine, which makes it slower: {}", error)
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return memory


def _make_region(name: str, size: int) -> int:
    """Return the descriptor of `size` bytes of memory that has no name in the file system."""
    if sys.platform == "linux":
        descriptor = os.memfd_create(f"baton-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile(prefix=f"baton-{name}-") as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
        if sys.platform == "linux":
            import fcntl

            # Whoever maps memory that then gets shorter is killed on touching what is gone.
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
