from ipaddress import ip_interface

import pytest

from node.errors import BatonError
from node.interface_class import RANK
from node.interfaces import Interface
from node.routes import (
    Route,
    choose_pairs,
    parse_address,
    parse_peer,
    peer_address,
    rank_routes,
    route_between,
    tcp_address,
)
from protocols.gossip import InterfaceClass, InterfaceRecord


def interface(name, klass, address, speed=0):
    return Interface(name, klass, (ip_interface(address),), speed)


TB = interface("tb0", "thunderbolt", "169.254.10.1/16")
ETH = interface("eth0", "ethernet", "10.0.0.1/24", 1000)
FAST = interface("eth1", "ethernet", "10.1.0.1/24", 10000)
WIFI = interface("wlan0", "wifi", "192.168.1.4/24")
DOCKER = interface("docker0", "virtual", "172.17.0.1/16")
ALL = (DOCKER, WIFI, ETH, FAST, TB)

ADDRESSES = (
    "/ip4/172.17.0.2/tcp/1",
    "/ip4/192.168.1.5/tcp/1",
    "/ip4/10.0.0.2/tcp/1",
    "/ip4/10.1.0.2/tcp/1",
    "/ip4/169.254.77.7/tcp/1",
    "/ip4/198.51.100.7/tcp/1",
)


def test_routes_are_ranked_by_class_then_speed_and_routed_ones_come_last():
    names = [route.interface for route in rank_routes(ADDRESSES, ALL, restricted=False)]
    assert names == ["tb0", "eth1", "eth0", "wlan0", "docker0", ""]


def test_nothing_is_dialled_beyond_named_interfaces():
    routes = rank_routes(ADDRESSES, (ETH,), restricted=True)
    assert [route.address for route in routes] == ["/ip4/10.0.0.2/tcp/1"]


def test_loopback_of_another_machine_is_no_route():
    assert rank_routes(["/ip4/127.0.0.1/tcp/1"], ALL, restricted=False) == ()


def test_ipv4_comes_before_ipv6_on_the_same_interface():
    both = Interface("lo", "loopback", (ip_interface("127.0.0.1/8"), ip_interface("::1/128")))
    routes = rank_routes(["/ip6/::1/tcp/5", "/ip4/127.0.0.1/tcp/5"], (both,), restricted=False)
    assert [route.address[:4] for route in routes] == ["/ip4", "/ip6"]


def test_link_local_address_is_a_route_over_each_interface_that_could_be_the_one():
    cables = [
        interface("en1", "thunderbolt", "fe80::1/64"),
        interface("en2", "thunderbolt", "fe80::2/64"),
        interface("en0", "wifi", "192.168.1.4/24"),
    ]
    address = "/ip6/fe80::9/tcp/4001"
    routes = rank_routes([address], cables, restricted=False)
    assert [route.pair for route in routes] == [(address, "en1"), (address, "en2")]
    # Without a scope the kernel's routes lead nowhere.
    assert rank_routes([address], cables[2:], restricted=False) == ()


@pytest.mark.parametrize(
    "scoped", ["/ip6zone/en2/ip6/fe80::9/tcp/4001", "/ip6/fe80::9%en2/tcp/4001"]
)
def test_scope_of_an_address_names_the_interface_and_is_not_kept_in_it(scoped):
    cables = [
        interface("en1", "thunderbolt", "fe80::1/64"),
        interface("en2", "thunderbolt", "fe80::2/64"),
    ]
    plain = "/ip6/fe80::9/tcp/4001"
    assert parse_address(scoped) == ("fe80::9%en2", 4001)
    assert tcp_address(*parse_address(scoped)) == plain
    routes = rank_routes([plain, scoped], cables, restricted=False)
    assert [route.pair for route in routes] == [(plain, "en1"), (plain, "en2")]
    (route,) = rank_routes([scoped], cables, restricted=False)
    assert route.pair == (plain, "en2")


def test_address_whose_place_is_known_comes_before_a_link_local_one_of_the_same_interface():
    addresses = ("169.254.1.1/16", "fd00::1/64", "fe80::1/64")
    cable = Interface("en1", "thunderbolt", tuple(ip_interface(each) for each in addresses))
    announced = ["/ip6/fe80::9/tcp/1", "/ip6/fd00::9/tcp/1", "/ip4/169.254.9.9/tcp/1"]
    routes = rank_routes(announced, [cable], restricted=False)
    assert [route.address for route in routes] == announced[::-1]


@pytest.mark.parametrize(
    "junk",
    [
        "/ip6/fd00::1%en0/tcp/1",
        "/ip6zone/en0/ip4/10.0.0.2/tcp/1",
        "/ip6zone/en0",
        "/ip6/%en0/tcp/1",
        "",
        "junk",
        "/ip4/10.0.0.2",
        "/ip4/300.0.0.1/tcp/1",
        "/dns/x/tcp/1",
        "/ip4/10.0.0.2/udp/1",
    ],
)
def test_junk_is_left_out(junk):
    with pytest.raises(ValueError):
        parse_address(junk)
    assert rank_routes([junk, "/ip4/10.0.0.2/tcp/0"], ALL, restricted=False) == ()


@pytest.mark.parametrize("ip", ["10.0.0.2", "fd00::2"])
def test_address_round_trip(ip):
    assert parse_address(tcp_address(ip, 4001)) == (ip, 4001)


PEER = "12D3KooWSMhvd6n1L5uX7oUucWc27nkUZWENHywbSHjVR3XVfk6b"


def test_static_peer_is_split():
    assert parse_peer(f"/ip4/10.0.0.2/tcp/4001/p2p/{PEER}") == (PEER, "/ip4/10.0.0.2/tcp/4001")


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/10.0.0.2/tcp/4001",
        "/ip6/fd00::2/tcp/4001",
        "/ip6/fe80::2%en0/tcp/4001",
        "/ip6zone/en0/ip6/fe80::2/tcp/4001",
    ],
)
def test_static_peer_is_split_as_it_was_joined(address):
    assert parse_peer(peer_address(PEER, address)) == (PEER, address)


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "10.0.0.2:4001",
        "/ip4/10.0.0.2/tcp/4001",
        f"/ip4/10.0.0.2/p2p/{PEER}",
        "/p2p/nobody",
        f"/ip6/fd00::1%en0/tcp/1/p2p/{PEER}",
        f"/dns4/den/tcp/4001/p2p/{PEER}",
    ],
)
def test_static_peer_that_is_none_is_refused_with_the_form(junk):
    with pytest.raises(BatonError, match="/ip4/ADDRESS/tcp/PORT/p2p/PEER"):
        parse_peer(junk)


def record(each: Interface, *ips: str) -> InterfaceRecord:
    return InterfaceRecord(each.name, each.klass, ips, each.speed_mbps)


@pytest.mark.parametrize("ours", ALL)
@pytest.mark.parametrize("theirs", ALL)
def test_both_ends_give_a_link_one_class_and_one_speed(ours: Interface, theirs: Interface):
    here = route_between("/ip4/10.0.0.2/tcp/1", ours.end(), theirs.end())
    there = route_between("/ip4/10.0.0.1/tcp/1", theirs.end(), ours.end())
    assert (here.klass, here.speed_mbps) == (there.klass, there.speed_mbps)
    assert RANK[here.klass] == max(RANK[ours.klass], RANK[theirs.klass])
    assert here.hardware == (ours.name, theirs.name)
    assert there.hardware == (theirs.name, ours.name)


def test_a_link_is_as_fast_as_its_slower_end():
    assert route_between("/ip4/10.1.0.2/tcp/1", FAST.end(), ETH.end()).speed_mbps == 1000
    assert route_between("/ip4/10.1.0.2/tcp/1", FAST.end(), WIFI.end()).speed_mbps == 10000
    assert route_between("/ip4/10.1.0.2/tcp/1", FAST.end(), None).speed_mbps == 10000


def test_routes_are_as_bad_as_the_peers_interface():
    theirs = (record(DOCKER, "10.0.0.2"), record(ETH, "192.168.1.5"))
    addresses = ("/ip4/192.168.1.5/tcp/1", "/ip4/10.0.0.2/tcp/1")
    routes = rank_routes(addresses, (ETH, WIFI), restricted=False, theirs=theirs)
    assert [(each.hardware, each.klass) for each in routes] == [
        (("wlan0", "eth0"), "wifi"),
        (("eth0", "docker0"), "virtual"),
    ]


def route(ours: str, theirs: str, klass: InterfaceClass = "ethernet", ip: str = "10.0.0.2"):
    return Route(f"/ip4/{ip}/tcp/1", klass, ours, 0, theirs)


def chosen(*routes: Route, restricted: bool = False) -> list[tuple[str, str]]:
    return [each[0].hardware for each in choose_pairs(routes, restricted=restricted)]


def test_one_connection_for_each_pair_of_interfaces_that_adds_hardware():
    assert chosen(
        route("tb0", "tb1", "thunderbolt"),
        route("eth0", "eth1"),
        route("eth0", "wlan1", "wifi"),
        route("wlan0", "eth1", "wifi"),
        route("wlan0", "wlan1", "wifi"),
        route("usb0", "usb1", "other"),
    ) == [("tb0", "tb1"), ("eth0", "eth1"), ("wlan0", "wlan1")]
    assert chosen(route("eth0", "eth1"), route("eth0", "wlan1"), route("wlan0", "eth1")) == [
        ("eth0", "eth1"),
        ("eth0", "wlan1"),
        ("wlan0", "eth1"),
    ]


def test_both_addresses_of_one_wire_are_one_pair():
    (pair,) = choose_pairs(
        [route("eth0", "eth1"), route("eth0", "eth1", ip="10.0.0.3")], restricted=False
    )
    assert len(pair) == 2


def test_virtual_and_routed_are_no_standbys_beside_real_unless_named():
    eth, docker = route("eth0", "eth1"), route("docker0", "docker0", "virtual")
    assert chosen(eth, docker) == [("eth0", "eth1")]
    assert chosen(docker) == [("docker0", "docker0")]
    assert chosen(eth, docker, restricted=True) == [("eth0", "eth1"), ("docker0", "docker0")]
    assert chosen(eth, route("", "", "other")) == [("eth0", "eth1")]
