"""What has been measured on links. It outlives their connections, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

import msgspec

from protocols.link import Measured

__all__ = ["LinkKey", "Rates"]

_MAX_LINKS: Final = 512

LinkKey: TypeAlias = tuple[str, str, str]
"""Peer id, interface here, interface there."""


class _Rate(msgspec.Struct, frozen=True):
    bytes_per_s: float
    measured_at: float


class _Known(msgspec.Struct):
    own: _Rate | None = None
    told: _Rate | None = None

    @property
    def newest(self) -> _Rate | None:
        known = [each for each in (self.own, self.told) if each is not None]
        return max(known, key=lambda each: each.measured_at, default=None)


class Rates:
    """Keeps for each link what this node has measured and what its peer has.

    Both ends then know the newest, whichever of them receives most. Links are forgotten, the least
    recently measured first, when there are too many. Times are seconds by any one clock.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[LinkKey, _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def note(self, key: LinkKey, bytes_per_s: float, now: float) -> None:
        """Note what this node has measured."""
        self._entry(key).own = _Rate(bytes_per_s, now)

    def told(self, key: LinkKey, measured: Measured, now: float) -> None:
        """Note what the peer says that it has measured."""
        self._entry(key).told = _Rate(measured.bytes_per_s, now - measured.age_s)

    def own(self, key: LinkKey, now: float) -> Measured | None:
        """Return what this node has measured, to be told to the peer."""
        known = self._known.get(key)
        if known is None or known.own is None:
            return None
        return Measured(known.own.bytes_per_s, now - known.own.measured_at)

    def bytes_per_s(self, key: LinkKey) -> float | None:
        """Return the newest rate that either end has measured."""
        newest = self._newest(key)
        return newest.bytes_per_s if newest is not None else None

    def age_s(self, key: LinkKey, now: float) -> float:
        """Return how long ago the link was last measured; infinite if never."""
        newest = self._newest(key)
        return now - newest.measured_at if newest is not None else float("inf")

    def _newest(self, key: LinkKey) -> _Rate | None:
        known = self._known.get(key)
        return known.newest if known is not None else None

    def _entry(self, key: LinkKey) -> _Known:
        known = self._known.setdefault(key, _Known())
        self._known.move_to_end(key)
        while len(self._known) > _MAX_LINKS:
            self._known.popitem(last=False)
        return known
