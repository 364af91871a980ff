"""The engine process's end of the socketpair to its node: frames, over two threads.

Control messages overtake chunks, so that a token never waits behind megabytes of another request's
KV cache.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from protocols.engine import EngineMessage, Inject, NodeMessage
from protocols.framing import Frame, FrameReader, encode_frame

__all__ = ["Buffer", "NodeChannel"]

Buffer = bytes | bytearray | memoryview

MAX_QUEUED_BULK = 16 << 20
"""Payload bytes that may wait for the socket before `send_bulk` blocks."""


class _Outgoing(NamedTuple):
    request: str
    buffers: Sequence[Buffer]
    size: int


class NodeChannel:
    """Sends and receives frames over `sock`, which it owns.

    `send` and `send_bulk` may be called from any thread; `frames` from one.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
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

        Raises:
            ProtocolError: the node sent something else than a message of this protocol.
            OSError: the socket broke.
        """
        reader: FrameReader[NodeMessage] = FrameReader(
            msgspec.msgpack.Decoder(NodeMessage),
            lambda message: message.chunk.size if isinstance(message, Inject) else 0,
        )
        while True:
            buffer = memoryview(bytearray(reader.wanted))
            if not self._fill(buffer):
                reader.eof()
                return
            frame = reader.feed(buffer)
            if frame is not None:
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
        while buffer:
            received = self._sock.recv_into(buffer)
            if received == 0:
                return False
            buffer = buffer[received:]
        return True

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
