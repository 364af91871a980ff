"""The cluster as this node sees it. No I/O and no clock: times come from outside."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, Literal, TypeAlias

import msgspec

from protocols.gossip import InstanceRecord, Leave, NodeRecord

__all__ = [
    "GONE_AFTER_S",
    "MAX_MEMBERS",
    "SUSPECT_AFTER_S",
    "Change",
    "ClusterView",
    "Event",
    "Member",
    "State",
]

SUSPECT_AFTER_S: Final = 5.0
GONE_AFTER_S: Final = 9.0
"""So that it is known of everywhere before 10 s are over."""
MAX_MEMBERS: Final = 512
"""Beyond them nobody joins: in a cluster without a secret, identities cost nothing."""
_HELD_UP_S: Final = 1.0
_FORGET_AFTER_S: Final = 3600.0

State: TypeAlias = Literal["alive", "suspect", "gone"]


class Change(Enum):
    """What happened to a member."""

    JOINED = "joined"
    UPDATED = "updated"
    SUSPECT = "suspect"
    RECOVERED = "recovered"
    GONE = "gone"
    LEFT = "left"


class Event(msgspec.Struct, frozen=True):
    """A change of the view."""

    change: Change
    peer_id: str


class Member(msgspec.Struct):
    """A node and what is known of it."""

    record: NodeRecord
    state: State
    seen_at: float
    """Seconds, by the clock of whoever calls the view."""
    left: bool = False
    """It said goodbye: only a new incarnation brings it back."""

    @property
    def version(self) -> tuple[int, int]:
        """What the last writer wins by."""
        return self.record.incarnation, self.record.sequence


class ClusterView:
    """Merges the members' records and judges which of them are there.

    Gone members are kept for an hour, so that a record which was long on its way does not bring
    one back.

    Args:
        own: this node's record; it is always alive in its own view.
        now: seconds by a monotonic clock, as in every other call.
    """

    def __init__(self, own: NodeRecord, now: float) -> None:
        self.self_id = own.peer_id
        self._ticked_at = now
        self._members = {own.peer_id: Member(own, "alive", now)}

    @property
    def own(self) -> NodeRecord:
        """This node's record."""
        return self._members[self.self_id].record

    @property
    def members(self) -> tuple[Member, ...]:
        """Every member, gone ones included, by peer id."""
        return tuple(self._members[peer_id] for peer_id in sorted(self._members))

    @property
    def present(self) -> frozenset[str]:
        """The members that are not gone, this node among them."""
        return frozenset(each for each, member in self._members.items() if member.state != "gone")

    def get(self, peer_id: str) -> Member | None:
        """Return a member, gone or not."""
        return self._members.get(peer_id)

    def is_alive(self, peer_id: str) -> bool:
        """Whether a member is there and not under suspicion."""
        member = self._members.get(peer_id)
        return member is not None and member.state == "alive"

    def instances(self) -> Iterator[tuple[NodeRecord, InstanceRecord]]:
        """Go through the instances of the members that are alive."""
        for member in self.members:
            if member.state == "alive":
                for instance in member.record.instances:
                    yield member.record, instance

    def merge(self, record: NodeRecord, now: float) -> list[Event]:
        """Take a record in, this node's own included; an old one changes nothing."""
        member = self._members.get(record.peer_id)
        if member is None:
            if len(self._members) >= MAX_MEMBERS and not self._forget_one():
                return []
            self._members[record.peer_id] = Member(record, "alive", now)
            return [Event(Change.JOINED, record.peer_id)]
        if (record.incarnation, record.sequence) <= member.version:
            return []
        if member.left and record.incarnation == member.record.incarnation:
            return []
        was, old = member.state, member.record
        member.record, member.state, member.seen_at, member.left = record, "alive", now, False
        if was == "gone" or record.incarnation != old.incarnation:
            return [Event(Change.JOINED, record.peer_id)]
        events = [Event(Change.RECOVERED, record.peer_id)] if was == "suspect" else []
        if msgspec.structs.replace(old, sequence=record.sequence) != record:
            events.append(Event(Change.UPDATED, record.peer_id))
        return events

    def heard(self, peer_id: str, now: float) -> list[Event]:
        """Note a sign of life that is not a record. It does not bring a gone member back."""
        member = self._members.get(peer_id)
        if member is None or member.state == "gone":
            return []
        member.seen_at = now
        if member.state == "suspect":
            member.state = "alive"
            return [Event(Change.RECOVERED, peer_id)]
        return []

    def connection_lost(self, peer_id: str) -> list[Event]:
        """Note that the last connection to a member broke: it is suspect at once."""
        member = self._members.get(peer_id)
        if peer_id == self.self_id or member is None or member.state != "alive":
            return []
        member.state = "suspect"
        return [Event(Change.SUSPECT, peer_id)]

    def leave(self, message: Leave) -> list[Event]:
        """Take a goodbye in; one of an earlier incarnation is ignored."""
        member = self._members.get(message.peer_id)
        if (
            message.peer_id == self.self_id
            or member is None
            or message.incarnation != member.record.incarnation
            or member.left
        ):
            return []
        member.state, member.left = "gone", True
        return [Event(Change.LEFT, message.peer_id)]

    def tick(self, now: float) -> list[Event]:
        """Judge the members by how long they have not been seen; to be called every second or so.

        When this process itself was held up, the silence was not theirs and does not count.
        """
        held_up = max(0.0, now - self._ticked_at - _HELD_UP_S)
        self._ticked_at = now
        events: list[Event] = []
        for peer_id, member in list(self._members.items()):
            if peer_id == self.self_id:
                continue
            member.seen_at += held_up
            unseen = now - member.seen_at
            if member.state == "gone":
                if unseen > _FORGET_AFTER_S:
                    del self._members[peer_id]
            elif unseen >= GONE_AFTER_S:
                member.state = "gone"
                events.append(Event(Change.GONE, peer_id))
            elif unseen >= SUSPECT_AFTER_S and member.state == "alive":
                member.state = "suspect"
                events.append(Event(Change.SUSPECT, peer_id))
        return events

    def _forget_one(self) -> bool:
        """Make room for a new member; return whether there was one that could go."""
        gone = [each for each in self._members.values() if each.state == "gone"]
        if not gone:
            return False
        del self._members[min(gone, key=lambda each: each.seen_at).record.peer_id]
        return True
