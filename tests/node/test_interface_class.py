import pytest

from node.interface_class import (
    RANK,
    LinuxFacts,
    classify_linux,
    classify_macos,
    parse_hardware_ports,
    read_sysfs,
)


def fabricate(root, name, *, files=None, driver=None, device=True, dirs=(), lowers=()):
    """Make what sysfs shows of an interface: files, a device with its driver, lower links."""
    base = root / "net" / name
    base.mkdir(parents=True)
    for file, content in (files or {}).items():
        (base / file).write_text(f"{content}\n")
    if device:
        pci = root / "devices" / name
        pci.mkdir(parents=True)
        (base / "device").symlink_to(pci)
        if driver:
            target = root / "drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (pci / "driver").symlink_to(target)
    for directory in dirs:
        (base / directory).mkdir()
    for lower in lowers:
        (base / f"lower_{lower}").symlink_to(root / "net" / lower)
    return root / "net"


UP = {"type": "1", "flags": "0x1003", "operstate": "up"}

CASES = {
    "loopback": ({"files": {"type": "772", "flags": "0x9"}, "device": False}, "loopback"),
    "ethernet": ({"files": {**UP, "speed": "10000"}, "driver": "igc"}, "ethernet"),
    "thunderbolt": ({"files": UP, "driver": "thunderbolt-net"}, "thunderbolt"),
    "wifi": ({"files": UP, "driver": "iwlwifi", "dirs": ["wireless", "phy80211"]}, "wifi"),
    "docker": ({"files": UP, "device": False, "dirs": ["bridge"]}, "virtual"),
    "tun": ({"files": {"type": "65534", "flags": "0x1"}, "device": False}, "virtual"),
    "modem": ({"files": {"type": "512", "flags": "0x1"}, "driver": "option"}, "other"),
    "infiniband": ({"files": {"type": "32", "flags": "0x1"}, "driver": "mlx5"}, "ethernet"),
}


@pytest.mark.parametrize("case", CASES)
def test_linux_class_comes_from_the_hardware(tmp_path, case):
    arguments, expected = CASES[case]
    # The name says nothing: Thunderbolt is told by its driver, not by 169.254 or `thunderbolt0`.
    root = fabricate(tmp_path, "enx0", **arguments)
    assert classify_linux(read_sysfs(root, "enx0")) == expected


def test_speed_and_state_are_read(tmp_path):
    root = fabricate(tmp_path, "e0", files={**UP, "speed": "2500"}, driver="r8169")
    facts = read_sysfs(root, "e0")
    assert (facts.speed_mbps, facts.up) == (2500, True)


@pytest.mark.parametrize(
    "files",
    [
        {"type": "1", "flags": "0x1002", "operstate": "up"},
        {"type": "1", "flags": "0x1003", "operstate": "down"},
        {"type": "1", "flags": "0x1003", "operstate": "lowerlayerdown"},
    ],
)
def test_interface_without_a_cable_is_down(tmp_path, files):
    root = fabricate(tmp_path, "e0", files={**files, "speed": "-1"}, driver="igc")
    facts = read_sysfs(root, "e0")
    assert not facts.up
    assert facts.speed_mbps == 0


def test_interface_that_sysfs_does_not_show_is_other(tmp_path):
    assert read_sysfs(tmp_path, "nowhere") == LinuxFacts()
    assert classify_linux(LinuxFacts()) == "other"


def test_bond_is_as_good_as_its_worst_member(tmp_path):
    root = fabricate(tmp_path, "bond0", files=UP, device=False, lowers=["e0", "e1"])
    facts = read_sysfs(root, "bond0")
    assert facts.lowers == ("e0", "e1")
    assert classify_linux(facts, ("ethernet", "wifi")) == "wifi"
    assert classify_linux(facts, ("virtual", "virtual")) == "virtual"


LISTING = """
Hardware Port: Ethernet Adapter (en4)
Device: en4
Ethernet Address: 1a:2b:3c:4d:5e:6f

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 36:c1:d2:e3:f4:05

Hardware Port: Wi-Fi
Device: en0
Ethernet Address: a4:83:e7:01:02:03

Hardware Port: Thunderbolt Ethernet Slot 1
Device: en7
Ethernet Address: 00:11:22:33:44:55

VLAN Configurations
===================
"""


def test_macos_class_comes_from_the_hardware_port():
    ports = parse_hardware_ports(LISTING)
    assert ports == {
        "en4": "Ethernet Adapter (en4)",
        "bridge0": "Thunderbolt Bridge",
        "en0": "Wi-Fi",
        "en7": "Thunderbolt Ethernet Slot 1",
    }
    names = ("en4", "bridge0", "en0", "en7", "lo0", "utun3", "bridge100", "fw0")
    assert [classify_macos(name, ports.get(name)) for name in names] == [
        "ethernet",
        "thunderbolt",
        "wifi",
        "ethernet",
        "loopback",
        "virtual",
        "virtual",
        "other",
    ]


def test_odd_listing_is_read_as_far_as_it_goes():
    assert parse_hardware_ports("Device: en9\nHardware Port:\nDevice: en8\nnonsense") == {}


def test_virtual_ranks_last():
    assert max(RANK, key=lambda klass: RANK[klass]) == "virtual"
