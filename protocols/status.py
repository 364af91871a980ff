"""`/baton/links/1`: what a node tells of its links to whoever draws the whole cluster.

The asking side opens a stream and sends nothing; the other writes one `LinkReport` and closes it.
Links are asked for and not gossiped, since there are as many as pairs of nodes, and nobody needs
them but people who look.
"""

from __future__ import annotations

from typing import Final

import msgspec

from protocols.gossip import InterfaceClass

__all__ = ["MAX_REPORT", "PROTOCOL_ID", "LinkReport", "LinkStatus"]

PROTOCOL_ID: Final = "/baton/links/1"
MAX_REPORT: Final = 256 << 10
"""Bytes; over a thousand links."""


class LinkStatus(msgspec.Struct, frozen=True):
    """A connection, as one of its two ends sees it."""

    source: str = msgspec.field(name="from")
    """Peer id of the end that tells."""
    to: str
    klass: InterfaceClass = msgspec.field(name="class")
    address: str
    """The multiaddr of the other end."""
    mb_per_s: float | None
    """10^6 bytes per second that the last transfer reached; None before the first."""
    rtt_ms: float | None
    """The last heartbeat's round trip in milliseconds; None before the first."""
    in_use: bool
    """Whether the next stream between the two takes this link."""
    interface: str
    """Of the end that tells; empty when the kernel's routes decide."""


class LinkReport(msgspec.Struct, frozen=True):
    """Every link of the node that answers, the one in use of each peer first."""

    links: tuple[LinkStatus, ...]
