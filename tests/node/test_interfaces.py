from ipaddress import ip_interface

import pytest

from node.errors import NoUsableInterface, UnknownInterface
from node.interfaces import (
    Interface,
    interfaces_towards,
    is_scoped,
    left_out,
    list_interfaces,
    parse_unready,
    select_interfaces,
    usable_addresses,
)


def interface(name, klass, *addresses, speed=0):
    return Interface(name, klass, tuple(ip_interface(each) for each in addresses), speed)


LO = interface("lo", "loopback", "127.0.0.1/8", "::1/128")
ETH = interface("eth0", "ethernet", "10.0.0.5/24")
VETH = interface("veth1", "virtual", "10.9.0.2/16")


def test_this_machine_has_loopback():
    found = {each.name: each for each in list_interfaces()}
    loopback = [each for each in found.values() if each.klass == "loopback"]
    assert any("127.0.0.1" in each.ips for each in loopback)


def test_ipv4_comes_first_and_link_local_ipv6_last_without_its_scope():
    addresses = usable_addresses(
        [
            ("fe80::1%eth0", 64),
            ("fd00::2", 64),
            ("0.0.0.0", 0),
            ("ff02::1", 16),
            ("169.254.3.4", 16),
        ]
    )
    assert [str(each) for each in addresses] == ["169.254.3.4/16", "fd00::2/64", "fe80::1/64"]


IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000000000000000001 02 40 20 80     eth0
fe800000000000000000000000000002 03 40 20 c0     eth1
fd000000000000000000000000000003 04 40 00 88     eth2
nonsense
"""


def test_addresses_that_are_checked_for_duplicates_or_are_duplicates_cannot_be_used_yet():
    assert parse_unready(IF_INET6) == {("eth1", "fe80::2"), ("eth2", "fd00::3")}


def test_loopback_is_used_only_when_alone_or_named():
    assert select_interfaces([LO, ETH]) == (ETH,)
    assert select_interfaces([LO]) == (LO,)
    assert select_interfaces([LO, ETH], ["lo"]) == (LO,)


def test_virtual_interface_is_used_where_nothing_else_is_or_if_it_is_named():
    assert select_interfaces([LO, VETH]) == (VETH,)
    assert select_interfaces([LO, ETH, VETH]) == (ETH,)
    assert select_interfaces([LO, ETH, VETH], ["veth1", "eth0"]) == (ETH, VETH)


def test_virtual_interfaces_that_are_left_out_are_told():
    assert left_out([LO, ETH, VETH], [ETH]) == (VETH,)
    assert left_out([LO, VETH], [VETH]) == ()


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnknownInterface, match="eth0, lo"):
        select_interfaces([LO, ETH], ["eth7"])


def test_machine_without_interfaces_is_told_so():
    with pytest.raises(NoUsableInterface):
        select_interfaces([])


def names_towards(ip, *interfaces):
    return [each.name for each in interfaces_towards(ip, interfaces)]


def test_interface_towards_takes_the_longest_prefix():
    wide = interface("wide", "wifi", "10.0.0.9/8")
    assert names_towards("10.0.0.77", wide, ETH) == ["eth0"]
    assert names_towards("10.8.0.1", wide, ETH) == ["wide"]
    assert names_towards("192.0.2.1", wide, ETH) == []
    assert names_towards("::1", LO, ETH) == ["lo"]


def test_link_local_address_may_be_behind_any_interface_unless_its_scope_says_which():
    cable = interface("tb0", "thunderbolt", "169.254.1.1/16", "fe80::1/64")
    other = interface("tb1", "thunderbolt", "169.254.2.2/16", "fe80::2/64")
    assert names_towards("169.254.7.7", cable, ETH, other) == ["tb0", "tb1"]
    assert names_towards("fe80::7", cable, ETH, other) == ["tb0", "tb1"]
    assert names_towards("fe80::7%tb1", cable, ETH, other) == ["tb1"]
    assert names_towards("fe80::7%tb9", cable, ETH, other) == []


def test_source_is_the_address_in_the_network_of_the_target():
    both = interface("eth0", "ethernet", "10.0.0.5/24", "10.1.0.5/24", "fe80::5/64")
    assert both.source_towards("10.1.0.9") == "10.1.0.5"
    assert both.source_towards("fe80::9") == "fe80::5"
    assert both.source_towards("192.0.2.1") == ""


@pytest.mark.parametrize(
    ("ip", "scoped"), [("fe80::1", True), ("fd00::1", False), ("169.254.0.1", False)]
)
def test_only_link_local_ipv6_needs_a_scope(ip, scoped):
    assert is_scoped(ip) is scoped


def test_record_is_what_peers_see():
    record = ETH.record()
    assert (record.name, record.klass, record.addresses) == ("eth0", "ethernet", ("10.0.0.5",))
