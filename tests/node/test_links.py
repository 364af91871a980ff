"""The table of links at both ends: which is used, and what is told."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing
from libp2p.network.connection.swarm_connection import SwarmConn

from node.link_keeper import surplus
from node.links import Link, LinkTable, TableSide
from protocols.gossip import InterfaceClass, InterfaceRecord
from protocols.link import Beat, LinkEnd

CLASSES: dict[str, InterfaceClass] = {
    "tb0": "thunderbolt",
    "eth0": "ethernet",
    "eth1": "ethernet",
    "wlan0": "wifi",
    "docker0": "virtual",
}


@dataclass
class Ends:
    """One connection between the nodes a and b, seen from each."""

    a: Link
    b: Link


class Pair:
    """Nodes a and b, and what goes on between them."""

    def __init__(self) -> None:
        self.a, self.b = LinkTable("a"), LinkTable("b")

    def connect(self, ours: str, theirs: str | None = None) -> Ends:
        theirs = theirs or ours
        ends = Ends(link("b", ours), link("a", theirs))
        self.a.add(ends.a)
        self.b.add(ends.b)
        return ends

    def beat(self, ends: Ends, rtt_s: float = 0.001) -> None:
        """Let both ends of a connection hear of the other once."""
        TableSide(self.b, ends.b).told(TableSide(self.a, ends.a).say())
        TableSide(self.a, ends.a).told(TableSide(self.b, ends.b).say())
        TableSide(self.a, ends.a).answered(rtt_s)

    def lose(self, ends: Ends) -> None:
        self.a.remove(ends.a)
        self.b.remove(ends.b)


def link(peer_id: str, interface: str) -> Link:
    connection = cast("SwarmConn", SimpleNamespace(muxed_conn=object()))
    end = LinkEnd(interface, CLASSES[interface])
    return Link(peer_id, "/ip4/10.0.0.2/tcp/1", end, connection, outbound=True)


@pytest.fixture
def pair(autojump_clock: trio.testing.MockClock) -> Pair:
    return Pair()


async def test_both_ends_use_the_better_link_and_fall_back_to_the_other(pair: Pair):
    wifi = pair.connect("wlan0")
    assert wifi.a.in_use
    assert wifi.b.in_use
    tb = pair.connect("tb0")
    for ends in (wifi, tb):
        pair.beat(ends)
    assert (tb.a.in_use, tb.b.in_use) == (True, True)
    assert (wifi.a.in_use, wifi.b.in_use) == (False, False)
    assert pair.a.to("b")[0] is tb.a
    pair.lose(tb)
    assert (wifi.a.in_use, wifi.b.in_use) == (True, True)


async def test_class_and_hardware_are_the_same_at_both_ends_once_told(pair: Pair):
    ends = pair.connect("tb0", "eth0")
    pair.beat(ends)
    assert ends.a.route.klass == ends.b.route.klass == "ethernet"
    assert ends.a.route.hardware == ("tb0", "eth0")
    assert ends.b.route.hardware == ("eth0", "tb0")


async def test_the_lower_id_decides_where_the_ends_measure_differently(pair: Pair):
    one, other = pair.connect("eth0"), pair.connect("eth1")
    for ends in (one, other):
        pair.beat(ends)
    pair.b.note_rate(other.b, 900e6)
    pair.a.note_rate(one.a, 100e6)
    await trio.sleep(1)
    pair.a.note_rate(other.a, 10e6)
    for ends in (one, other, one, other):
        pair.beat(ends)
    assert one.a.in_use
    assert one.b.in_use
    assert pair.b.rates.bytes_per_s(other.b.key) == 10e6, "the newest measurement is known to both"


async def test_the_follower_keeps_to_what_it_was_told_until_that_link_is_gone(pair: Pair):
    eth, tb = pair.connect("eth0"), pair.connect("tb0")
    pair.b.told(eth.b, Beat(1, eth.a.end, preferred=True))
    assert eth.b.in_use
    pair.b.answered(tb.b, 0.0001)
    assert eth.b.in_use
    pair.b.remove(eth.b)
    assert tb.b.in_use


async def test_the_lower_id_follows_nobody(pair: Pair):
    eth, tb = pair.connect("eth0"), pair.connect("tb0")
    pair.a.told(eth.a, Beat(1, eth.b.end, preferred=True))
    assert tb.a.in_use


async def test_a_change_is_told_at_once(pair: Pair):
    eth = pair.connect("eth0")
    with trio.fail_after(1):
        await TableSide(pair.a, eth.a).wait_for_news()
    with trio.move_on_after(5) as scope:
        await TableSide(pair.a, eth.a).wait_for_news()
    assert scope.cancelled_caught
    pair.connect("tb0")
    with trio.fail_after(1):
        await TableSide(pair.a, eth.a).wait_for_news()


async def test_measurements_outlive_the_connection(pair: Pair):
    eth = pair.connect("eth0")
    pair.beat(eth)
    pair.b.note_rate(eth.b, 5e6)
    pair.beat(eth)
    pair.lose(eth)
    again = pair.connect("eth0")
    pair.beat(again)
    assert pair.a.rates.bytes_per_s(again.a.key) == 5e6


async def test_links_to_interfaces_that_the_peer_has_no_more_are_told(pair: Pair):
    eth, wifi = pair.connect("eth0"), pair.connect("wlan0")
    for ends in (eth, wifi):
        pair.beat(ends)
    both = tuple(InterfaceRecord(name, CLASSES[name], ()) for name in ("eth0", "wlan0"))
    assert pair.a.know("b", both) == ()
    assert pair.a.know("b", both[1:]) == (eth.a,)
    # A record that was written before the interface appeared says nothing against it.
    assert pair.a.know("b", both[1:]) == ()


async def test_surplus_links_are_those_that_add_no_hardware_and_never_the_one_in_use(pair: Pair):
    first, second, virtual = pair.connect("eth0"), pair.connect("eth0"), pair.connect("docker0")
    for ends in (first, second, virtual):
        pair.beat(ends)
    used, spare = (first, second) if first.a.in_use else (second, first)
    assert surplus(pair.a.to("b"), named=False) == (spare.a, virtual.a)
    assert surplus(pair.a.to("b"), named=True) == (spare.a,)
    pair.lose(used)
    assert surplus(pair.a.to("b"), named=False) == (virtual.a,)


async def test_links_of_which_the_other_end_is_unknown_are_not_surplus(pair: Pair):
    pair.connect("eth0")
    pair.connect("eth0")
    assert surplus(pair.a.to("b"), named=False) == ()
