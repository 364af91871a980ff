"""The engine process's end of the socketpair to its node: frames, over two threads.

Control messages overtake chunks, so that a token never waits behind megabytes of another request's
KV cache.
"""

from __future__ import annotations

import os
import socket
import threading
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from loguru import logger

from engines.memory import SharedMemory
from protocols.engine import EngineMessage, Inject, NodeMessage, Share, Shared
from protocols.errors import Malformed
from protocols.framing import Frame, FrameReader, ReadAhead, encode_frame

__all__ = ["Buffer", "NodeChannel"]

Buffer = bytes | bytearray | memoryview

MAX_QUEUED_BULK = 16 << 20
"""Payload bytes that may wait for the socket before `send_bulk` blocks."""


_REGIONS: Final = 2
"""File descriptors that come with `Share`."""


class _Outgoing(NamedTuple):
    request: str
    buffers: Sequence[Buffer]
    size: int


class NodeChannel:
    """Sends and receives frames over `sock`, which it owns.

    `send` and `send_bulk` may be called from any thread; `frames` from one.

    Attributes:
        memory: shared with the node; None until it has offered some.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.memory: SharedMemory | None = None
        self._sock = sock
        self._ahead = ReadAhead()
        self._descriptors: list[int] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._state = threading.Condition()
        self._control: deque[_Outgoing] = deque()
        self._bulk: deque[_Outgoing] = deque()
        self._bulk_size = 0
        self._closing = False
        self._writer = threading.Thread(target=self._write, name="channel-writer", daemon=True)
        self._writer.start()

    def send(self, message: EngineMessage) -> None:
        """Queue a message that no payload follows. Never blocks."""
        frame = encode_frame(self._encoder, message)
        with self._state:
            self._control.append(_Outgoing("", (frame,), len(frame)))
            self._state.notify_all()

    def send_bulk(
        self, request: str, message: EngineMessage, payload: Sequence[Buffer] = ()
    ) -> None:
        """Queue a message and its payload behind the other bulk messages.

        With a payload it blocks while `MAX_QUEUED_BULK` bytes wait, whichever requests they are of;
        `drop` gives back the room that those of a request take.
        """
        frame = encode_frame(self._encoder, message)
        size = len(frame) + sum(memoryview(buffer).nbytes for buffer in payload)
        with self._state:
            self._state.wait_for(
                lambda: not payload or self._bulk_size < MAX_QUEUED_BULK or self._closing
            )
            self._bulk.append(_Outgoing(request, (frame, *payload), size))
            self._bulk_size += size
            self._state.notify_all()

    def drop(self, request: str) -> None:
        """Forget the request's bulk messages that have not been sent."""
        with self._state:
            kept = deque(item for item in self._bulk if item.request != request)
            self._bulk_size -= sum(item.size for item in self._bulk) - sum(
                item.size for item in kept
            )
            self._bulk = kept
            self._state.notify_all()

    def frames(self) -> Iterator[Frame[NodeMessage]]:
        """Yield what the node sends, until it closes its end.

        The payload of an `Inject` with a place in shared memory is a view of it.

        Raises:
            ProtocolError: the node sent something else than a message of this protocol.
            OSError: the socket broke.
        """
        reader: FrameReader[NodeMessage] = FrameReader(
            msgspec.msgpack.Decoder(NodeMessage),
            lambda message: (
                message.chunk.size if isinstance(message, Inject) and message.at is None else 0
            ),
        )
        while True:
            buffer = memoryview(bytearray(reader.wanted))
            if not self._fill(buffer):
                reader.eof()
                return
            frame = reader.feed(buffer)
            match frame:
                case None:
                    continue
                case Frame(Share() as share):
                    self._accept(share)
                case Frame(Inject(at=int(at)) as inject):
                    if self.memory is None:
                        raise Malformed("a payload in shared memory, of which there is none")
                    yield Frame(inject, self.memory.payload(at, inject.chunk.size))
                case _:
                    yield frame

    def close(self) -> None:
        """Send what is queued and close the socket."""
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._writer.join(timeout=5)
        self._sock.close()

    def _fill(self, buffer: memoryview) -> bool:
        """Read until `buffer` is full; return whether it came to that."""
        buffer = buffer[self._ahead.take_into(buffer) :]
        while buffer:
            if len(buffer) >= self._ahead.size:
                received = self._sock.recv_into(buffer)
            else:
                received = self._receive_ahead()
                self._ahead.filled(received)
                received = self._ahead.take_into(buffer)
            if received == 0:
                return False
            buffer = buffer[received:]
        return True

    def _receive_ahead(self) -> int:
        """Read what is there, and keep the file descriptors that come with it."""
        room = socket.CMSG_SPACE(_REGIONS * array("i").itemsize)
        received, ancillary, _, _ = self._sock.recvmsg_into([self._ahead.room], room)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came = array("i")
                came.frombytes(data[: len(data) - len(data) % came.itemsize])
                self._descriptors.extend(came)
        return received

    def _accept(self, share: Share) -> None:
        """Map the memory that is offered, and say so; without it, payloads come in frames."""
        descriptors, self._descriptors = self._descriptors, []
        try:
            # Fewer descriptors are a ValueError here; more than there is room for do not come.
            to_node, to_engine = descriptors
            self.memory = SharedMemory((to_node, share.to_node), (to_engine, share.to_engine))
        except (OSError, ValueError) as error:
            logger.warning("no memory can be shared with the node: {}", error)
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.send(Shared())

    def _write(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._control or self._bulk or self._closing)
                if self._control:
                    item = self._control.popleft()
                elif self._bulk:
                    item = self._bulk.popleft()
                    self._bulk_size -= item.size
                    self._state.notify_all()
                else:
                    return
            try:
                _send_all(self._sock, item.buffers)
            except OSError:
                # The node is gone. The reader sees it too and ends the process; until then
                # nobody may be kept waiting for room.
                with self._state:
                    self._closing = True
                    self._state.notify_all()
                return


def _send_all(sock: socket.socket, buffers: Sequence[Buffer]) -> None:
    pending = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
    while pending:
        sent = sock.sendmsg(pending)
        while pending and sent >= len(pending[0]):
            sent -= len(pending.pop(0))
        if sent:
            pending[0] = pending[0][sent:]
