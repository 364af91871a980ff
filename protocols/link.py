"""What the two ends of a connection tell each other about it, every second."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from protocols.gossip import InterfaceClass

__all__ = ["Beat", "LinkEnd", "Measured"]


class LinkEnd(msgspec.Struct, frozen=True):
    """The network interface that a connection ends at.

    Only its own node knows: behind an address translation, or where one address is on two machines,
    the address tells the other end nothing.
    """

    interface: str
    klass: InterfaceClass
    speed_mbps: int = 0
    """0 when the driver does not say."""


class Measured(msgspec.Struct, frozen=True):
    """The rate that the sender has measured on the link."""

    bytes_per_s: Annotated[float, Meta(gt=0)]
    age_s: Annotated[float, Meta(ge=0)]
    """Since then; clocks of two machines cannot be compared."""


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat, and its answer, which repeats the number."""

    number: int
    end: LinkEnd | None = None
    """The sender's; None in the answer of a node that has only just accepted the connection."""
    preferred: bool = False
    """Whether the sender would open its next stream on this connection. Of two nodes the one with
    the lower peer id decides, and the other follows."""
    measured: Measured | None = None
    """None before the sender has measured anything."""
