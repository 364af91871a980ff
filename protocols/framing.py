"""Frames: a length-prefixed msgpack message, and the payload that some messages are followed by.

    +----------------+------------------+---------------------------+
    | length, u32 BE | msgpack, length  | payload, if the message   |
    |                | bytes            | says that one follows     |
    +----------------+------------------+---------------------------+

`FrameReader` is told bytes and tells how many it wants next, so that the caller can read a payload
straight into a buffer of its final size. It checks every size before that size is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from protocols.errors import LimitExceeded, Malformed, Truncated

__all__ = ["MAX_MESSAGE", "MAX_PAYLOAD", "Frame", "FrameReader", "ReadAhead", "encode_frame"]

MAX_MESSAGE: Final = 8 << 20
"""Bytes of a msgpack message: a request with two million token ids."""
MAX_PAYLOAD: Final = 256 << 20
"""Bytes of a payload."""

_LENGTH_SIZE: Final = 4

M = TypeVar("M")


class Frame(NamedTuple, Generic[M]):
    """A message and its payload (empty where none follows)."""

    message: M
    payload: memoryview


_EMPTY: Final = memoryview(b"")


def encode_frame(encoder: msgspec.msgpack.Encoder, message: object) -> bytearray:
    """Return the frame of `message` without its payload, which the caller sends after it.

    Raises:
        LimitExceeded: the message is over `MAX_MESSAGE`.
    """
    frame = bytearray(_LENGTH_SIZE)
    encoder.encode_into(message, frame, _LENGTH_SIZE)
    length = len(frame) - _LENGTH_SIZE
    if length > MAX_MESSAGE:
        raise LimitExceeded(f"a message of {length} bytes, over the limit of {MAX_MESSAGE}")
    frame[:_LENGTH_SIZE] = length.to_bytes(_LENGTH_SIZE, "big")
    return frame


class ReadAhead:
    """Bytes that were read along with those wanted, so that small frames take one read and not two.

    Args:
        size: bytes that can be read at once.
    """

    def __init__(self, size: int = 64 << 10) -> None:
        self.size = size
        self._buffer = memoryview(bytearray(size))
        self._start = self._end = 0

    @property
    def room(self) -> memoryview:
        """Where to read more to. Only to be used when nothing is left of what was read before."""
        return self._buffer

    def filled(self, count: int) -> None:
        """Say that `count` bytes have been read into `room`."""
        self._start, self._end = 0, count

    def take_into(self, buffer: memoryview) -> int:
        """Move what is there into `buffer`, as much as fits; return how much that was."""
        count = min(len(buffer), self._end - self._start)
        buffer[:count] = self._buffer[self._start : self._start + count]
        self._start += count
        return count


class FrameReader(Generic[M]):
    """Turns bytes into frames, one `feed` of exactly `wanted` bytes at a time.

    Args:
        decoder: typed decoder of the messages that may come.
        payload_size: how many payload bytes follow a message; none do when left out. It may refuse
            the message by raising a `ProtocolError`.
        max_message: limit of a message in bytes.
        max_payload: limit of a payload in bytes.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[M],
        payload_size: Callable[[M], int] | None = None,
        *,
        max_message: int = MAX_MESSAGE,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self._decoder = decoder
        self._payload_size = payload_size
        self._max_message = max_message
        self._max_payload = max_payload
        self._wanted = _LENGTH_SIZE
        self._in_length = True
        self._message: M | None = None

    @property
    def wanted(self) -> int:
        """Bytes that the next `feed` takes."""
        return self._wanted

    @property
    def between_frames(self) -> bool:
        """Whether the stream may end here."""
        return self._in_length

    @property
    def headed(self) -> M | None:
        """The message whose payload the next `feed` takes, if one is due."""
        return self._message

    def feed(self, data: bytes | bytearray | memoryview) -> Frame[M] | None:
        """Take the next `wanted` bytes and return the frame that they complete, if they do.

        A payload is kept as the buffer that was fed, not copied: a memoryview as that very object.

        Raises:
            ValueError: not exactly `wanted` bytes; a mistake of the caller, not of the peer.
            Malformed: the bytes are no message of the decoder's type.
            LimitExceeded: a length over its limit.
        """
        if len(data) != self._wanted:
            raise ValueError(f"fed {len(data)} bytes where {self._wanted} are wanted")
        if self._in_length:
            return self._feed_length(data)
        if self._message is not None:
            payload = data if isinstance(data, memoryview) else memoryview(data)
            return self._complete(self._message, payload)
        return self._feed_message(data)

    def eof(self) -> None:
        """Say that the stream has ended.

        Raises:
            Truncated: it ended inside a frame.
        """
        if not self.between_frames:
            raise Truncated(f"the stream ended with {self._wanted} bytes of a frame missing")

    def _feed_length(self, data: bytes | bytearray | memoryview) -> None:
        length = int.from_bytes(data, "big")
        if length == 0:
            raise Malformed("a message of no bytes")
        if length > self._max_message:
            raise LimitExceeded(f"a message of {length} bytes, over {self._max_message}")
        self._wanted, self._in_length = length, False

    def _feed_message(self, data: bytes | bytearray | memoryview) -> Frame[M] | None:
        try:
            message = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"not a message of this protocol: {error}") from error
        size = self._payload_size(message) if self._payload_size is not None else 0
        if size < 0:
            raise Malformed(f"a payload of {size} bytes")
        if size > self._max_payload:
            raise LimitExceeded(f"a payload of {size} bytes, over {self._max_payload}")
        if size == 0:
            return self._complete(message, _EMPTY)
        self._message, self._wanted = message, size
        return None

    def _complete(self, message: M, payload: memoryview) -> Frame[M]:
        self._message, self._wanted, self._in_length = None, _LENGTH_SIZE, True
        return Frame(message, payload)
