"""What the master has ordered and the cluster does not show yet. Pure: times come from outside.

A new master starts with an empty one: what the last one ordered is in the nodes' records by then,
or within a moment.
"""

from __future__ import annotations

from typing import Final

import msgspec

from node.membership.view import ClusterView
from node.placement.decide import PlannedLoad
from node.placement.options import Ordered

__all__ = ["SHOWN_WITHIN_S", "Ledger"]

SHOWN_WITHIN_S: Final = 30.0
"""After that long, an order that no record shows has not been carried out."""


class Ledger:
    """Loads that were ordered, each until the record of its node shows it."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Ordered, float]] = {}
        self._next = 0

    def add(self, load: PlannedLoad, now: float) -> int:
        """Note an order that is about to be given, and return its number."""
        self._next += 1
        ordered = Ordered(load.peer_id, load.model, load.engine, load.roles, load.needed)
        self._entries[self._next] = ordered, now
        return self._next

    def named(self, number: int, instance: str, now: float) -> None:
        """Note the id of the instance that an order has made."""
        if number in self._entries:
            ordered, _ = self._entries[number]
            self._entries[number] = msgspec.structs.replace(ordered, instance=instance), now

    def drop(self, number: int) -> None:
        """Forget an order that was not carried out."""
        self._entries.pop(number, None)

    def forget(self, instance: str) -> None:
        """Forget the order of an instance that has been removed."""
        for number, (ordered, _) in list(self._entries.items()):
            if ordered.instance == instance:
                del self._entries[number]

    def outstanding(self, view: ClusterView, now: float) -> tuple[Ordered, ...]:
        """Return what the view does not show, and forget what it does."""
        for number, (ordered, at) in list(self._entries.items()):
            member = view.get(ordered.peer_id)
            shown = member is not None and any(
                instance.id == ordered.instance for instance in member.record.instances
            )
            gone = member is None or member.state == "gone"
            if shown or gone or now - at > SHOWN_WITHIN_S:
                del self._entries[number]
        return tuple(ordered for ordered, _ in self._entries.values())
