"""The sending side of `/kv-prefill/1`, without I/O.

    server = Server()
    while (request := server.feed(read_exactly(server.wanted))) is None: ...
    send(server.accept(...))
    send(server.chunk(header), *payload)  # repeated
    send(server.done(...))

The methods that return bytes check what they are told against the request: whatever the engine
does, nothing that was not asked for is sent.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from protocols.errors import LocalError, ProtocolError, Truncated, UnexpectedMessage
from protocols.framing import FrameReader, encode_frame
from protocols.kv_prefill.checks import check_accept, check_chunk, check_request, check_within
from protocols.kv_prefill.messages import (
    Accept,
    Chunk,
    ClientMessage,
    Done,
    Failed,
    Refuse,
    Request,
    ServerMessage,
)

__all__ = ["Server"]

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)


class _State(Enum):
    READING = auto()
    """The request has not come in full."""
    DECIDING = auto()
    """The request is to be accepted or refused."""
    INVALID = auto()
    """What came is no valid request: it can only be refused."""
    SENDING = auto()
    LEFT = auto()
    """The client has gone before everything was sent."""
    FINISHED = auto()


class Server:
    """One request, from reading it to the last chunk."""

    def __init__(self) -> None:
        self.request: Request | None = None
        """What is asked for, once it has been read and found valid."""
        self._accept: Accept | None = None
        self._state = _State.READING
        self._reader: FrameReader[ClientMessage] = FrameReader(_decoder)

    @property
    def wanted(self) -> int:
        """Bytes of the request that the next `feed` takes; 0 when it has come in full."""
        return self._reader.wanted if self._state is _State.READING else 0

    @property
    def finished(self) -> bool:
        """Whether everything that may be sent has been."""
        return self._state is _State.FINISHED

    def feed(self, data: bytes | bytearray | memoryview) -> Request | None:
        """Take the next `wanted` bytes and return the request that they complete, if they do.

        Raises:
            ProtocolError: it is no valid request; `refuse` may say so to the client.
            UnexpectedMessage: bytes after the request, where only the end of the stream may come.
            ValueError: not exactly `wanted` bytes.
        """
        if self._state is not _State.READING:
            raise UnexpectedMessage(f"{len(data)} bytes after the request")
        try:
            frame = self._reader.feed(data)
            if frame is None:
                return None
            check_request(frame.message)
        except ProtocolError:
            self._state = _State.INVALID
            raise
        self.request, self._state = frame.message, _State.DECIDING
        return self.request

    def eof(self) -> None:
        """Say that the client has closed its side: it has cancelled, unless all has been sent.

        Raises:
            Truncated: it did so before the request had come in full.
        """
        reading = self._state is _State.READING
        if self._state is not _State.FINISHED:
            self._state = _State.LEFT
        if reading:
            raise Truncated("the stream ended before the request was complete")

    def accept(self, accept: Accept) -> bytearray:
        """Return the bytes that accept the request.

        Raises:
            LocalError: there is no request to accept, or this does not answer it.
        """
        request = self.request
        if self._state is not _State.DECIDING or request is None:
            raise self._misplaced(accept)
        if accept.layout.fingerprint != request.fingerprint:
            raise LocalError(f"{accept.layout.fingerprint} offered for {request.fingerprint}")
        try:
            check_accept(accept, request, accept.layout)
        except ProtocolError as error:
            raise LocalError(f"not an answer to this request: {error}") from error
        self._accept, self._state = accept, _State.SENDING
        return encode_frame(_encoder, accept)

    def refuse(self, refuse: Refuse) -> bytearray:
        """Return the bytes that refuse the request; nothing may be sent after them.

        Raises:
            LocalError: there is nothing to refuse.
        """
        if self._state not in (_State.DECIDING, _State.INVALID):
            raise self._misplaced(refuse)
        self._state = _State.FINISHED
        return encode_frame(_encoder, refuse)

    def chunk(self, chunk: Chunk) -> bytearray:
        """Return the bytes that head a chunk; its payload must be sent right after them.

        Raises:
            LocalError: the request has not been accepted, or has been finished, or the chunk is
                not part of what was asked for.
        """
        request, accept = self._agreed(chunk)
        try:
            check_chunk(chunk, accept.layout)
            check_within(chunk, request.start, request.end)
        except ProtocolError as error:
            raise LocalError(f"not a chunk of this request: {error}") from error
        if chunk.codec not in ("raw", accept.codec):
            raise LocalError(f"a chunk in {chunk.codec} where {accept.codec} was agreed on")
        return encode_frame(_encoder, chunk)

    def done(self, done: Done) -> bytearray:
        """Return the bytes that say that everything has been sent; nothing may follow them.

        Raises:
            LocalError: the request has not been accepted, or has been finished.
        """
        self._agreed(done)
        self._state = _State.FINISHED
        return encode_frame(_encoder, done)

    def failed(self, failed: Failed) -> bytearray:
        """Return the bytes that say that nothing more will be sent.

        Raises:
            LocalError: the request has not been accepted, or has been finished.
        """
        self._agreed(failed)
        self._state = _State.FINISHED
        return encode_frame(_encoder, failed)

    def _agreed(self, message: ServerMessage) -> tuple[Request, Accept]:
        if self._state is not _State.SENDING or self.request is None or self._accept is None:
            raise self._misplaced(message)
        return self.request, self._accept

    def _misplaced(self, message: ServerMessage) -> LocalError:
        return LocalError(f"{type(message).__name__} while {self._state.name.lower()}")
