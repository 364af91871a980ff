"""Macs as their own tools describe them; the texts have the form of real ones, shortened."""

import pytest

from node.interface_macos import (
    MacFacts,
    classify_macos,
    parse_hardware_ports,
    parse_ifconfig,
)

# A Mac Studio with 10 Gbit Ethernet, a Thunderbolt cable in its first port, and a USB adapter.
PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 1c:1d:d3:00:00:01

Hardware Port: Ethernet Adapter (en6)
Device: en6
Ethernet Address: aa:8f:3b:00:00:06

Hardware Port: USB 10/100/1000 LAN
Device: en9
Ethernet Address: 00:e0:4c:00:00:09

Hardware Port: AX88179A
Device: en10
Ethernet Address: 00:0e:c6:00:00:10

Hardware Port: iPhone USB
Device: en11
Ethernet Address: 36:42:62:00:00:11

Hardware Port: Thunderbolt Ethernet Slot 1
Device: en8
Ethernet Address: 00:11:22:00:00:08

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 36:7d:da:00:00:20

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 1c:1d:d3:00:00:02

Hardware Port: Thunderbolt 1
Device: en2
Ethernet Address: 36:7d:da:00:00:20

Hardware Port: Thunderbolt 2
Device: en3
Ethernet Address: 36:7d:da:00:00:24

VLAN Configurations
===================
"""

IFCONFIG = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\toptions=1203<RXCSUM,TXCSUM,TXSTATUS,SW_TIMESTAMP>
\tinet 127.0.0.1 netmask 0xff000000
\tinet6 ::1 prefixlen 128
\tinet6 fe80::1%lo0 prefixlen 64 scopeid 0x1
\tnd6 options=201<PERFORMNUD,DAD>
gif0: flags=8010<POINTOPOINT,MULTICAST> mtu 1280
anpi0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether aa:8f:3b:00:00:26
\tinet6 fe80::a88f:3bff:fe00:26%anpi0 prefixlen 64 scopeid 0x4
\tnd6 options=201<PERFORMNUD,DAD>
\tmedia: none
\tstatus: inactive
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=567<RXCSUM,TXCSUM,VLAN_MTU,TSO4,TSO6,AV,CHANNEL_IO>
\tether 1c:1d:d3:00:00:01
\tinet6 fe80::1c3a:1%en0 prefixlen 64 secured scopeid 0x8
\tinet 192.168.1.20 netmask 0xffffff00 broadcast 192.168.1.255
\tnd6 options=201<PERFORMNUD,DAD>
\tmedia: autoselect (10Gbase-T <full-duplex>)
\tstatus: active
en6: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether aa:8f:3b:00:00:06
\tmedia: none
\tstatus: inactive
en9: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 10.1.1.9 netmask 0xffffff00 broadcast 10.1.1.255
\tmedia: autoselect (1000baseT <full-duplex>)
\tstatus: active
en10: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tmedia: autoselect (2500Base-T <full-duplex>)
\tstatus: active
en2: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\toptions=460<TSO4,TSO6,CHANNEL_IO>
\tether 36:7d:da:00:00:20
\tmedia: autoselect <full-duplex>
\tstatus: active
en3: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tether 36:7d:da:00:00:24
\tmedia: autoselect <full-duplex>
\tstatus: inactive
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=63<RXCSUM,TXCSUM,TSO4,TSO6>
\tether 36:7d:da:00:00:20
\tinet6 fe80::86d:1%bridge0 prefixlen 64 secured scopeid 0xc
\tinet 169.254.86.1 netmask 0xffff0000 broadcast 169.254.255.255
\tConfiguration:
\t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0
\t\tmaxage 0 holdcnt 0 proto stp maxaddr 100 timeout 1200
\t\troot id 0:0:0:0:0:0 priority 0 ifcost 0 port 0
\t\tipfilter disabled flags 0x0
\tmember: en2 flags=3<LEARNING,DISCOVER>
\t        ifmaxaddr 0 port 10 priority 0 path cost 0
\tmember: en3 flags=3<LEARNING,DISCOVER>
\t        ifmaxaddr 0 port 11 priority 0 path cost 0
\tnd6 options=201<PERFORMNUD,DAD>
\tmedia: <unknown type>
\tstatus: active
ap1: flags=8802<BROADCAST,SIMPLEX,MULTICAST> mtu 1500
\tether 1e:1d:d3:00:00:02
\tmedia: autoselect (<unknown type>)
\tstatus: inactive
en1: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet6 fe80::c3f:1%en1 prefixlen 64 secured scopeid 0xf
\tmedia: autoselect
\tstatus: active
awdl0: flags=8843<UP,BROADCAST,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet6 fe80::2406:1%awdl0 prefixlen 64 scopeid 0x10
\tmedia: autoselect
\tstatus: active
llw0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet6 fe80::2406:1%llw0 prefixlen 64 scopeid 0x11
\tstatus: active
utun0: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1380
\tinet6 fe80::ce81:1%utun0 prefixlen 64 scopeid 0x12
"""

CLASSES = {
    "lo0": "loopback",
    "en0": "ethernet",
    "en1": "wifi",
    "en2": "thunderbolt",
    "en6": "ethernet",
    "en8": "ethernet",
    "en9": "ethernet",
    "en10": "ethernet",
    "en11": "other",
    "bridge0": "thunderbolt",
    "bridge100": "virtual",
    "utun0": "virtual",
    "awdl0": None,
    "llw0": None,
    "anpi0": None,
    "ap1": None,
    "gif0": None,
}


@pytest.mark.parametrize("name", CLASSES)
def test_class_comes_from_the_hardware_port(name):
    # bridge0 has an address of 169.254/16, which says nothing.
    ports, facts = parse_hardware_ports(PORTS), parse_ifconfig(IFCONFIG)
    assert classify_macos(name, ports, facts.get(name, MacFacts())) == CLASSES[name]


def test_state_speed_and_members_are_read():
    facts = parse_ifconfig(IFCONFIG)
    up = {name for name, each in facts.items() if each.up}
    assert up == {
        *("lo0", "en0", "en1", "en2", "en9", "en10"),
        *("bridge0", "awdl0", "llw0", "utun0"),
    }
    speeds = {name: each.speed_mbps for name, each in facts.items() if each.speed_mbps}
    assert speeds == {"en0": 10_000, "en9": 1000, "en10": 2500}
    assert facts["bridge0"].members == ("en2", "en3")


def test_bridge_of_the_users_own_is_as_good_as_its_worst_member():
    ports = parse_hardware_ports(PORTS)
    assert classify_macos("bridge1", ports, MacFacts(members=("en0", "en2"))) == "ethernet"
    assert classify_macos("bridge100", ports, MacFacts(members=("vmenet0",))) == "virtual"


def test_odd_listings_are_read_as_far_as_they_go():
    assert parse_hardware_ports("Device: en9\nHardware Port:\nDevice: en8\nnonsense") == {}
    assert parse_ifconfig("\tstatus: active\nnonsense\nen0: flags=zz<UP> mtu 1\n") == {}
