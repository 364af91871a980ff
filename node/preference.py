"""Which of several links to a peer is the one to use. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from node.interface_class import RANK
from protocols.gossip import InterfaceClass

__all__ = ["Standing", "choose_link", "clearly_better"]

_PRESUMED_BYTES_PER_S: Final = 50e6
"""Of a link that nobody has measured and whose hardware does not say."""
_PRESUMED_SHARE: Final = 0.5
"""What is believed of the speed that the hardware says, until it has been measured."""
_FASTER: Final = 1.3
_SOONER: Final = 0.5
_NOISE_S: Final = 0.001
"""Less than this between two round trips says nothing."""


class Standing(msgspec.Struct, frozen=True):
    """What is known of a link."""

    klass: InterfaceClass
    speed_mbps: int = 0
    bytes_per_s: float | None = None
    """Measured."""
    rtt_s: float | None = None

    @property
    def expected_bytes_per_s(self) -> float:
        """The rate to reckon with."""
        if self.bytes_per_s is not None:
            return self.bytes_per_s
        if self.speed_mbps:
            return self.speed_mbps * 1e6 / 8 * _PRESUMED_SHARE
        return _PRESUMED_BYTES_PER_S

    @property
    def order(self) -> tuple[int, float, float]:
        """Lower is better: class, then rate, then round trip."""
        rtt_s = self.rtt_s if self.rtt_s is not None else float("inf")
        return RANK[self.klass], -self.expected_bytes_per_s, rtt_s


def clearly_better(one: Standing, other: Standing) -> bool:
    """Say whether `one` is so much better than `other` that changing to it pays."""
    if one.klass != other.klass:
        return RANK[one.klass] < RANK[other.klass]
    ours, theirs = one.expected_bytes_per_s, other.expected_bytes_per_s
    if ours > _FASTER * theirs or theirs > _FASTER * ours:
        return ours > theirs
    if one.rtt_s is None or other.rtt_s is None:
        return False
    return one.rtt_s < _SOONER * other.rtt_s - _NOISE_S


def choose_link(standings: Sequence[Standing], current: int | None) -> int:
    """Return the index of the link to use; the current one's unless another is clearly better.

    Args:
        standings: of the links, at least one.
        current: the index of the one in use, if it is still there.
    """
    best = min(range(len(standings)), key=lambda index: standings[index].order)
    if current is not None and not clearly_better(standings[best], standings[current]):
        return current
    return best
