"""What the view of the cluster means to the election. No I/O and no clock."""

from __future__ import annotations

from node.election.machine import Effect, ElectionMachine, Place
from node.membership.view import Change, ClusterView, Event

__all__ = ["place_in", "take_event"]


def place_in(view: ClusterView) -> Place:
    """Return where the view's own node stands: those that started earlier come before it.

    Incarnations are of clocks that may be wrong. That is harmless: the order has to be the same
    everywhere, not right.
    """
    own = (view.own.incarnation, view.self_id)
    others = [
        member.record
        for member in view.members
        if member.state == "alive" and member.record.peer_id != view.self_id
    ]
    return Place(
        rank=sum((each.incarnation, each.peer_id) < own for each in others),
        followers=1 + sum(each.master == view.self_id for each in others),
    )


def take_event(
    machine: ElectionMachine, view: ClusterView, event: Event, now: float
) -> list[Effect]:
    """Tell the machine of a change of the view; return what to do.

    Args:
        machine: this node's part in the election.
        view: the view that has changed.
        event: what changed.
        now: seconds by the machine's clock.
    """
    member = view.get(event.peer_id)
    if member is None or event.peer_id == view.self_id:
        return []
    record = member.record
    match event.change:
        case Change.GONE | Change.LEFT:
            return machine.gone(event.peer_id, place_in(view), now)
        case Change.SUSPECT:
            machine.lost(event.peer_id, now)
            return []
        case Change.JOINED:
            machine.joined(event.peer_id, record.incarnation, now)
        case _:
            pass
    return machine.heard_term(record.term, record.master, now)
