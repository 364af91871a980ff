"""What a peer can do wrong at the level of connections and streams, and who is told of it.

This package notices and drops; whether a peer is to be kept away altogether is decided above.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from libp2p.peer.id import ID

__all__ = ["Conduct", "Lenient", "Offence"]


class Offence(Enum):
    """A kind of wrong. The value is its weight in points, which `node.offences` adds up."""

    VIOLATION = 4.0
    """It broke the protocol that everything else rests on; the connection is of no further use."""
    MALFORMED = 2.0
    """It sent a message that no correct node sends."""
    IDLE = 0.2
    """It opened a stream and never said what for. A node that is stopped for a while may too."""
    FLOOD = 0.02
    """It sent one message more than its share."""


class Conduct(Protocol):
    """Keeps account of what peers do."""

    def report(self, peer: ID, offence: Offence, detail: str) -> None:
        """Take note of an offence. Must not block."""
        ...

    def refuses(self, peer: ID) -> bool:
        """Whether connections with a peer are not wanted now."""
        ...


class Lenient:
    """Refuses nobody and forgets everything."""

    def report(self, peer: ID, offence: Offence, detail: str) -> None:
        """Do nothing."""

    def refuses(self, peer: ID) -> bool:
        """Return False."""
        return False
