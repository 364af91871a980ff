import random

import msgspec
import pytest

from node.membership.view import (
    GONE_AFTER_S,
    MAX_MEMBERS,
    SUSPECT_AFTER_S,
    Change,
    ClusterView,
    Event,
)
from protocols.gossip import Leave
from tests.support.records import instance_record, node_record


def view_with(*peers, now=0.0):
    view = ClusterView(node_record("self"), now)
    for peer in peers:
        view.merge(node_record(peer), now)
    return view


def state(view, peer):
    member = view.get(peer)
    assert member is not None
    return member.state


def elapse(view, start, end):
    """Tick twice a second from after `start` up to `end`; return the events."""
    events = []
    steps = max(1, round((end - start) * 2))
    for step in range(1, steps + 1):
        events += view.tick(start + (end - start) * step / steps)
    return events


def host(view, peer):
    member = view.get(peer)
    assert member is not None
    return member.record.host


def test_first_record_is_a_member():
    view = view_with()
    assert view.merge(node_record("a"), 1.0) == [Event(Change.JOINED, "a")]
    assert view.is_alive("a")


@pytest.mark.parametrize("old", [(1, 4), (1, 5), (0, 9)])
def test_older_record_changes_nothing_and_is_no_sign_of_life(old):
    view = view_with()
    view.merge(node_record("a", sequence=5), 0.0)
    stale = node_record("a", incarnation=old[0], sequence=old[1], host="stale")
    assert view.merge(stale, 4.0) == []
    assert host(view, "a") == "host-a"
    assert elapse(view, 0.0, SUSPECT_AFTER_S) == [Event(Change.SUSPECT, "a")]


def test_order_of_arrival_does_not_matter():
    records = [
        node_record(
            "a", incarnation=incarnation, sequence=sequence, host=f"{incarnation}.{sequence}"
        )
        for incarnation in (1, 2)
        for sequence in (1, 2, 3)
    ]
    for seed in range(20):
        random.Random(seed).shuffle(records)
        view = view_with()
        for record in records:
            view.merge(record, 0.0)
        assert host(view, "a") == "2.3"


def test_heartbeat_record_is_no_update_but_a_change_is():
    view = view_with("a")
    assert view.merge(node_record("a", sequence=2), 1.0) == []
    changed = node_record("a", instance_record("i"), sequence=3)
    assert view.merge(changed, 2.0) == [Event(Change.UPDATED, "a")]


def test_new_incarnation_has_joined():
    view = view_with("a")
    assert view.merge(node_record("a", incarnation=2, sequence=1), 1.0) == [
        Event(Change.JOINED, "a")
    ]


def test_silence_makes_suspect_then_gone():
    view = view_with("a", "b")
    assert elapse(view, 0.0, SUSPECT_AFTER_S - 0.1) == []
    view.merge(node_record("b", sequence=2), 3.4)
    assert view.tick(SUSPECT_AFTER_S) == [Event(Change.SUSPECT, "a")]
    assert view.tick(SUSPECT_AFTER_S + 0.1) == []
    assert not view.is_alive("a")
    assert elapse(view, SUSPECT_AFTER_S, GONE_AFTER_S) == [
        Event(Change.SUSPECT, "b"),
        Event(Change.GONE, "a"),
    ]
    assert (state(view, "a"), state(view, "b")) == ("gone", "suspect")


def test_silence_while_this_process_was_held_up_does_not_count():
    view = view_with("a")
    assert view.tick(0.25) == []
    assert view.tick(60.0) == []
    assert view.tick(61.0) == []
    events = [event for tick in range(62, 75) for event in view.tick(float(tick))]
    assert events == [Event(Change.SUSPECT, "a"), Event(Change.GONE, "a")]


def test_self_is_never_suspect():
    view = view_with()
    assert view.tick(1e6) == []
    assert view.connection_lost("self") == []
    assert view.leave(Leave("self", 1)) == []
    assert view.is_alive("self")


def test_lost_connection_makes_suspect_at_once_and_a_record_clears_it():
    view = view_with("a")
    assert view.connection_lost("a") == [Event(Change.SUSPECT, "a")]
    assert view.connection_lost("a") == []
    assert view.merge(node_record("a", sequence=2), 1.0) == [Event(Change.RECOVERED, "a")]


def test_lost_connection_does_not_delay_gone():
    view = view_with("a")
    view.connection_lost("a")
    assert elapse(view, 0.0, GONE_AFTER_S) == [Event(Change.GONE, "a")]


def test_heartbeat_keeps_alive_and_clears_suspicion_but_revives_nobody():
    view = view_with("a", "b")
    assert view.heard("a", 4.0) == []
    assert elapse(view, 0.0, SUSPECT_AFTER_S) == [Event(Change.SUSPECT, "b")]
    assert view.heard("b", 5.0) == [Event(Change.RECOVERED, "b")]
    elapse(view, 5.0, 100.0)
    assert view.heard("a", 101.0) == []
    assert state(view, "a") == "gone"
    assert view.heard("stranger", 1.0) == []


def test_leave_is_believed_and_only_a_new_start_undoes_it():
    view = view_with("a")
    assert view.leave(Leave("a", 1)) == [Event(Change.LEFT, "a")]
    assert view.leave(Leave("a", 1)) == []
    assert view.merge(node_record("a", sequence=99), 1.0) == []
    assert state(view, "a") == "gone"
    assert view.merge(node_record("a", incarnation=2), 2.0) == [Event(Change.JOINED, "a")]
    assert view.leave(Leave("a", 1)) == [], "a goodbye of an earlier start"
    assert view.is_alive("a")


def test_gone_member_is_not_revived_by_what_was_under_way_but_comes_back_itself():
    view = view_with()
    view.merge(node_record("a", sequence=50), 0.0)
    elapse(view, 0.0, GONE_AFTER_S)
    assert view.merge(node_record("a", sequence=49), 11.0) == []
    assert view.merge(node_record("a", sequence=51), 12.0) == [Event(Change.JOINED, "a")]


def test_gone_members_are_forgotten_in_the_end():
    view = view_with("a")
    elapse(view, 0.0, 3700.0)
    assert view.get("a") is None


def test_instances_are_those_of_members_that_are_alive():
    view = view_with()
    view.merge(node_record("a", instance_record("ia")), 0.0)
    view.merge(node_record("b", instance_record("ib")), 0.0)
    view.connection_lost("b")
    assert [instance.id for _, instance in view.instances()] == ["ia"]


def test_record_survives_the_wire():
    record = node_record("a", instance_record("i"))
    wire = msgspec.msgpack.encode(record)
    assert msgspec.msgpack.decode(wire, type=type(record)) == record


def test_members_are_bounded_and_gone_ones_make_room():
    view = ClusterView(node_record("self"), 0.0)
    for number in range(2 * MAX_MEMBERS):
        view.merge(node_record(f"fake-{number:05}"), 1.0)
    assert len(view.members) == MAX_MEMBERS
    assert view.merge(node_record("true"), 2.0) == []
    for second in range(1, 15):
        view.tick(float(second))
    assert view.merge(node_record("true"), 15.0)
    assert view.is_alive("true")
    assert len(view.members) == MAX_MEMBERS
