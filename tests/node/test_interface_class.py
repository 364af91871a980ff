import pytest

from node.interface_class import (
    RANK,
    LinuxFacts,
    classify_linux,
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
    "wifi with nothing but phy80211": (
        {"files": UP, "driver": "mt7921e", "dirs": ["phy80211"]},
        "wifi",
    ),
    "USB ethernet": ({"files": {**UP, "speed": "2500"}, "driver": "r8152"}, "ethernet"),
    "thunderbolt, as newer kernels name it": (
        {"files": UP, "driver": "thunderbolt_net"},
        "thunderbolt",
    ),
    "wireguard": ({"files": {"type": "65534", "flags": "0x91"}, "device": False}, "virtual"),
    "veth": ({"files": UP, "device": False}, "virtual"),
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


@pytest.mark.parametrize("lower", ["bond", "vlan", "macvlan", "bridge"])
def test_what_is_built_on_hardware_is_of_its_class(tmp_path, lower):
    fabricate(tmp_path, "e0", files=UP, driver="thunderbolt-net")
    root = fabricate(tmp_path, lower, files=UP, device=False, lowers=["e0"])
    facts = read_sysfs(root, lower)
    assert classify_linux(facts, (classify_linux(read_sysfs(root, "e0")),)) == "thunderbolt"


def test_bridge_on_hardware_stays_that_beside_guests(tmp_path):
    root = fabricate(tmp_path, "br0", files=UP, device=False, lowers=["e0", "vnet0"])
    assert classify_linux(read_sysfs(root, "br0"), ("ethernet", "virtual")) == "ethernet"


@pytest.mark.parametrize("speed", ["-1", "4294967295", "", "fast"])
def test_speed_that_the_driver_does_not_know_is_none(tmp_path, speed):
    root = fabricate(tmp_path, "e0", files={**UP, "speed": speed}, driver="igc")
    assert read_sysfs(root, "e0").speed_mbps == 0


def test_speed_that_cannot_be_read_is_none(tmp_path):
    # Reading it fails with EINVAL while there is no carrier, as reading a directory fails here.
    root = fabricate(tmp_path, "e0", files=UP, driver="igc", dirs=["speed"])
    assert read_sysfs(root, "e0").speed_mbps == 0


def test_bond_is_as_good_as_its_worst_member(tmp_path):
    root = fabricate(tmp_path, "bond0", files=UP, device=False, lowers=["e0", "e1"])
    facts = read_sysfs(root, "bond0")
    assert facts.lowers == ("e0", "e1")
    assert classify_linux(facts, ("ethernet", "wifi")) == "wifi"
    assert classify_linux(facts, ("virtual", "virtual")) == "virtual"


def test_virtual_ranks_last():
    assert max(RANK, key=lambda klass: RANK[klass]) == "virtual"
