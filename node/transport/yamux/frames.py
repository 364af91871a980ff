"""yamux frames (https://github.com/hashicorp/yamux/blob/master/spec.md): 12 bytes of header."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

__all__ = [
    "HEADER_SIZE",
    "INITIAL_WINDOW",
    "MAX_U32",
    "BadFrame",
    "Flag",
    "GoAway",
    "Header",
    "Kind",
    "WindowExceeded",
    "YamuxViolation",
    "pack_header",
    "unpack_header",
]

HEADER_SIZE: Final = 12
INITIAL_WINDOW: Final = 256 << 10
"""Bytes that either side of a new stream may send before it hears of the other."""
MAX_U32: Final = 2**32 - 1

_HEADER: Final = struct.Struct("!BBHII")
_VERSION: Final = 0


class Kind(IntEnum):
    """Type of a frame."""

    DATA = 0
    WINDOW_UPDATE = 1
    PING = 2
    GO_AWAY = 3


class Flag(IntFlag):
    """Flags of a frame."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class GoAway(IntEnum):
    """Why a side ends the session."""

    NORMAL = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


class YamuxViolation(Exception):
    """The peer broke the protocol; the connection is of no further use."""


class BadFrame(YamuxViolation):
    """A frame that cannot be, or cannot be now."""


class WindowExceeded(YamuxViolation):
    """The peer sent more than the window that it was given."""


class Header(NamedTuple):
    """Header of a frame. `length` is bytes of data, a window's growth, or an opaque value."""

    kind: int
    flags: int
    stream_id: int
    length: int


def pack_header(kind: Kind, flags: int, stream_id: int, length: int) -> bytes:
    """Return a header's 12 bytes."""
    return _HEADER.pack(_VERSION, kind, flags, stream_id, length)


def unpack_header(data: bytes | bytearray | memoryview) -> Header:
    """Return the header at the start of `data`, which has 12 bytes or more.

    Raises:
        BadFrame: another version, an unknown type, or a stream where none may be named.
    """
    version, kind, flags, stream_id, length = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise BadFrame(f"version {version}")
    if kind > Kind.GO_AWAY:
        raise BadFrame(f"frame of type {kind}")
    if (stream_id == 0) == (kind <= Kind.WINDOW_UPDATE):
        raise BadFrame(f"frame of type {kind} for stream {stream_id}")
    return Header(kind, flags, stream_id, length)
