"""When to ping a peer, and when to take it for dead. No I/O, and no clock of its own."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from node.transport.yamux.frames import MAX_U32

__all__ = ["Beat", "Heartbeat"]

_TICKS: Final = 4
"""Ticks per interval or time-out, whichever is shorter."""


class Beat(Enum):
    """What a tick asks for."""

    NOTHING = auto()
    PING = auto()
    GIVE_UP = auto()


class Heartbeat:
    """Counts ticks since something was heard.

    It counts ticks rather than time, so that a process that was stopped or starved for a while does
    not take its peers for dead before it has looked at what they have sent.

    Args:
        interval_s: time between pings.
        timeout_s: time without a byte from the peer after which it is taken for dead.

    Attributes:
        tick_s: time that the caller is to let pass between calls of `tick`.
        round_trip_s: smoothed time between ping and pong; 0 before the first pong.
    """

    def __init__(self, *, interval_s: float, timeout_s: float) -> None:
        self.tick_s = min(interval_s, timeout_s) / _TICKS
        self.round_trip_s = 0.0
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._quiet_s = 0.0
        self._since_ping_s = 0.0
        self._value = 0
        self._pinged_at = 0.0

    def heard(self) -> None:
        """Take note of bytes from the peer, whatever they say."""
        self._quiet_s = 0.0

    def tick(self) -> Beat:
        """Take note that `tick_s` has passed, and return what is to be done."""
        self._quiet_s += self.tick_s
        self._since_ping_s += self.tick_s
        if self._quiet_s >= self._timeout_s:
            return Beat.GIVE_UP
        if self._since_ping_s >= self._interval_s:
            self._since_ping_s = 0.0
            return Beat.PING
        return Beat.NOTHING

    def ping(self, now: float) -> int:
        """Take note that a ping goes out; return the value for it."""
        self._value = (self._value + 1) & MAX_U32
        self._pinged_at = now
        return self._value

    def pong(self, value: int, now: float) -> None:
        """Take note of an answer; one to an earlier ping than the last tells nothing."""
        if value != self._value:
            return
        latest = now - self._pinged_at
        self.round_trip_s = (self.round_trip_s + latest) / 2 if self.round_trip_s else latest
