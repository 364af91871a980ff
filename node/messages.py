"""Framed messages over byte streams."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from node.transport.errors import StreamClosed
from node.transport.streams import ByteStream
from protocols.errors import Truncated
from protocols.framing import FrameReader, encode_frame

__all__ = ["read_message", "write_message"]

M = TypeVar("M")

_ENCODER = msgspec.msgpack.Encoder()


async def read_message(stream: ByteStream, reader: FrameReader[M]) -> M:
    """Read one message without a payload.

    Raises:
        ProtocolError: the bytes are no such message, or the stream ended.
        StreamReset: the stream was reset.
        ConnectionLost: the connection is gone.
    """
    while True:
        try:
            data = await stream.read_exactly(reader.wanted)
        except StreamClosed as error:
            raise Truncated("the stream ended where a message had to come") from error
        frame = reader.feed(data)
        if frame is not None:
            return frame.message


async def write_message(stream: ByteStream, message: object) -> None:
    """Send one message without a payload. Raises as `ByteStream.send` does."""
    await stream.send(encode_frame(_ENCODER, message))
