"""When a node publishes its record. No I/O and no clock."""

from __future__ import annotations

from typing import Final

__all__ = ["CALM_S", "PUBLISH_GAP_S", "Rhythm"]

PUBLISH_GAP_S: Final = 0.1
"""Changes that come closer together are published as one."""
CALM_S: Final = 5.0
"""After which an unchanged record is published again when it is no sign of life."""

_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 2.0
_MEMBERS_PER_SECOND: Final = 20
_REPEATS: Final = 3


class Rhythm:
    """Decides when the next record is due.

    Every member receives every record, several times over, so in a large cluster they are most of
    the idle traffic. A change is published at once and repeated a few times, for pubsub promises
    nothing. After that the record is a sign of life to members without a link to this node, every
    second (in a cluster of 40 or more every 2 s: they suspect it after 5 s, so two in a row may be
    lost). Where all have a link, its heartbeat is that sign, and the record comes every 5 s.
    """

    def __init__(self) -> None:
        self._published_at = float("-inf")
        self._changed = True
        self._repeats = _REPEATS

    def changed(self) -> None:
        """Note that the record is another."""
        self._changed = True
        self._repeats = _REPEATS

    def unsettled(self) -> None:
        """Note that a link or a member came or went: somebody may lack the record."""
        self._repeats = _REPEATS

    def published(self, now: float) -> None:
        """Note that the record is published."""
        if not self._changed:
            self._repeats = max(0, self._repeats - 1)
        self._published_at, self._changed = now, False

    def due(self, members: int, *, linked: bool) -> float:
        """Return when to publish next, in seconds by the clock of `published`.

        Args:
            members: those that are not gone, this one included.
            linked: whether there is a link to each of them.
        """
        if self._changed:
            return self._published_at + PUBLISH_GAP_S
        if linked and not self._repeats:
            return self._published_at + CALM_S
        interval = min(_LONGEST_S, max(_SHORTEST_S, members / _MEMBERS_PER_SECOND))
        return self._published_at + interval
