"""The receiving side of `/kv-prefill/1`, without I/O.

    client = Client(request, layout)
    send(client.request_frame)
    while client.wanted:
        event = client.feed(read_exactly(client.wanted))

A payload may be read straight to where it is to be decoded from: `incoming` says that the next
`feed` is one, and of which chunk. Checksums are for whoever decodes the payloads to check; a chunk
that turns out to be unusable is taken out of `coverage` again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from protocols.cache import CacheLayout
from protocols.errors import LocalError, ProtocolError, Truncated, UnexpectedMessage
from protocols.framing import Frame, FrameReader, encode_frame
from protocols.kv_prefill.checks import check_accept, check_chunk, check_request, check_within
from protocols.kv_prefill.coverage import Coverage
from protocols.kv_prefill.messages import (
    Accept,
    Chunk,
    Done,
    Failed,
    Refuse,
    Request,
    ServerMessage,
)

__all__ = [
    "Accepted",
    "ChunkArrived",
    "Client",
    "Completed",
    "Event",
    "Refused",
    "TransferFailed",
]

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ServerMessage] = msgspec.msgpack.Decoder(ServerMessage)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The cache is being computed, and fits ours."""

    accept: Accept


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing will come. The stream is done."""

    refuse: Refuse


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    """One layer's cache of a token range; `payload` is the buffer that was fed."""

    chunk: Chunk
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Completed:
    """All that was asked for has arrived. The stream is done.

    `done` is `None` when the server left without its last message, on which nothing depends.
    """

    done: Done | None


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """No more will come, and something is missing. The stream is done.

    What has arrived is right, and usable up to `Client.coverage.usable_end`.
    """

    reason: str
    retryable: bool


Event: TypeAlias = Accepted | Refused | ChunkArrived | Completed | TransferFailed


class Client:
    """One request, from asking to the last chunk.

    Args:
        request: what is asked for.
        layout: the receiver's own cache, whose fingerprint the request names.

    Raises:
        LocalError: the request is one that no server may accept.
    """

    def __init__(self, request: Request, layout: CacheLayout) -> None:
        try:
            check_request(request)
        except ProtocolError as error:
            raise LocalError(f"not a request to send: {error}") from error
        if request.fingerprint != layout.fingerprint:
            raise LocalError(f"a request for {request.fingerprint} into {layout.fingerprint}")
        self.layout = layout
        """The receiver's; the accepted one, with the dtype that the chunks have, once there is."""
        self.coverage = Coverage(layout, request.start, request.end)
        self.chunks = 0
        """Chunks that have arrived, repeated ones included."""
        self.raw_bytes = 0
        self.sent_bytes = 0
        self._request = request
        self._accept: Accept | None = None
        self._finished = False
        self._reader: FrameReader[ServerMessage] = FrameReader(_decoder, self._admit)

    @property
    def request_frame(self) -> bytearray:
        """The bytes to send, before anything is fed."""
        return encode_frame(_encoder, self._request)

    @property
    def wanted(self) -> int:
        """Bytes that the next `feed` takes; 0 when the stream is done."""
        return 0 if self._finished else self._reader.wanted

    @property
    def incoming(self) -> Chunk | None:
        """The chunk whose payload the next `feed` takes, if one is due."""
        headed = self._reader.headed
        return headed if isinstance(headed, Chunk) and not self._finished else None

    def feed(self, data: bytes | bytearray | memoryview) -> Event | None:
        """Take the next `wanted` bytes and return what they complete.

        Raises:
            ProtocolError: the server broke the protocol. The stream is done; `coverage` still says
                what arrived before.
            LocalError: the stream was done already.
            ValueError: not exactly `wanted` bytes.
        """
        if self._finished:
            raise LocalError("fed bytes after the end of the stream")
        try:
            frame = self._reader.feed(data)
            return None if frame is None else self._take(frame)
        except ProtocolError:
            self._finished = True
            raise

    def eof(self) -> Completed | None:
        """Say that the server has closed the stream, and return the event that this is, if any.

        Raises:
            Truncated: it closed it before everything had arrived.
        """
        if self._finished:
            return None
        self._finished = True
        if self.coverage.complete:
            return Completed(None)
        if self._accept is None:
            raise Truncated("the stream ended before the request was answered")
        raise Truncated(f"the stream ended early: {self.coverage.describe_missing()}")

    def _admit(self, message: ServerMessage) -> int:
        """Check a message against the state before its payload is read, and return its size."""
        match message:
            case Accept() | Refuse():
                if self._accept is not None:
                    raise UnexpectedMessage(f"{type(message).__name__} after Accept")
            case Chunk():
                self._check_chunk(message)
                return message.size
            case Done() | Failed():
                self._accepted(message)
        return 0

    def _check_chunk(self, chunk: Chunk) -> None:
        accept = self._accepted(chunk)
        check_chunk(chunk, accept.layout)
        check_within(chunk, self._request.start, self._request.end)
        if chunk.codec not in ("raw", accept.codec):
            raise UnexpectedMessage(f"a chunk in {chunk.codec} where {accept.codec} was agreed on")

    def _accepted(self, message: ServerMessage) -> Accept:
        if self._accept is None:
            raise UnexpectedMessage(f"{type(message).__name__} before Accept")
        return self._accept

    def _take(self, frame: Frame[ServerMessage]) -> Event:
        message = frame.message
        match message:
            case Accept():
                check_accept(message, self._request, self.layout)
                self._accept, self.layout = message, message.layout
                self.coverage = Coverage(self.layout, self._request.start, self._request.end)
                return Accepted(message)
            case Chunk():
                self.coverage.add(message)
                self.chunks += 1
                self.raw_bytes += message.raw_size
                self.sent_bytes += message.size
                return ChunkArrived(message, frame.payload)
            case Refuse():
                self._finished = True
                return Refused(message)
            case Failed():
                self._finished = True
                return TransferFailed(message.reason, message.retryable)
            case Done():
                self._finished = True
                if self.coverage.complete:
                    return Completed(message)
                missing = self.coverage.describe_missing()
                return TransferFailed(f"the server was done, but {missing}", retryable=False)
