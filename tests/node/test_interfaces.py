from ipaddress import ip_interface

import pytest

from node.errors import NoUsableInterface, UnknownInterface
from node.interfaces import (
    Interface,
    interface_towards,
    list_interfaces,
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


def test_undialable_addresses_are_left_out_and_ipv4_comes_first():
    addresses = usable_addresses(
        [("fd00::2", 64), ("fe80::1%eth0", 64), ("0.0.0.0", 0), ("169.254.3.4", 16)]
    )
    assert [str(each) for each in addresses] == ["169.254.3.4/16", "fd00::2/64"]


def test_loopback_is_used_only_when_alone_or_named():
    assert select_interfaces([LO, ETH, VETH]) == (ETH, VETH)
    assert select_interfaces([LO]) == (LO,)
    assert select_interfaces([LO, ETH], ["lo"]) == (LO,)


def test_virtual_interface_is_used():
    assert select_interfaces([LO, VETH]) == (VETH,)


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnknownInterface, match="eth0, lo"):
        select_interfaces([LO, ETH], ["eth7"])


def test_machine_without_interfaces_is_told_so():
    with pytest.raises(NoUsableInterface):
        select_interfaces([])


def test_interface_towards_takes_the_longest_prefix():
    wide = interface("wide", "wifi", "10.0.0.9/8")
    assert interface_towards("10.0.0.77", [wide, ETH]) == ETH
    assert interface_towards("10.8.0.1", [wide, ETH]) == wide
    assert interface_towards("192.0.2.1", [wide, ETH]) is None
    assert interface_towards("::1", [LO, ETH]) == LO


def test_record_is_what_peers_see():
    record = ETH.record()
    assert (record.name, record.klass, record.addresses) == ("eth0", "ethernet", ("10.0.0.5",))
