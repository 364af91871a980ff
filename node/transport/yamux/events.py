"""What a yamux session tells its caller."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from node.transport.yamux.flow import StreamState

__all__ = ["Event", "GoneAway", "Opened", "Pong", "Readable", "WasReset", "Writable"]


class Opened(NamedTuple):
    """The peer has opened a stream."""

    stream: StreamState


class Readable(NamedTuple):
    """A stream's buffer has bytes, its target is full, or its last byte has come."""

    stream: StreamState


class Writable(NamedTuple):
    """A stream's send window has grown."""

    stream: StreamState


class WasReset(NamedTuple):
    """The peer has reset a stream."""

    stream: StreamState


class Pong(NamedTuple):
    """The peer has answered a ping."""

    value: int


class GoneAway(NamedTuple):
    """The peer opens and takes no further streams; those that are open go on."""

    code: int


Event: TypeAlias = Opened | Readable | Writable | WasReset | Pong | GoneAway
