"""Limits and times of a yamux connection."""

from __future__ import annotations

from dataclasses import dataclass

from node.transport.noise_records import MAX_PLAINTEXT

__all__ = ["YamuxSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class YamuxSettings:
    """Limits and times of a connection.

    Attributes:
        max_frame: bytes of the data frames that are sent. The default is just below 1 MiB, the
            most that other implementations are known to take well, and whole noise messages.
        max_window: bytes to which a stream's receive window may grow.
        max_inbound: streams that the peer may have open at a time.
        ping_interval_s: time between pings.
        ping_timeout_s: time without a byte from the peer after which it is taken for dead.
        linger_s: time that a closed stream is kept for the peer to end its side.
    """

    max_frame: int = 16 * MAX_PLAINTEXT
    max_window: int = 16 << 20
    max_inbound: int = 512
    ping_interval_s: float = 5.0
    ping_timeout_s: float = 10.0
    linger_s: float = 60.0
