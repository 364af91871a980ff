"""What kind of hardware a network interface is: from sysfs on Linux, networksetup on macOS.

An address says nothing of it: 169.254.x.y may be Thunderbolt, or an Ethernet without DHCP.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from protocols.gossip import InterfaceClass

__all__ = [
    "RANK",
    "LinuxFacts",
    "classify_linux",
    "classify_macos",
    "parse_hardware_ports",
    "read_sysfs",
]

RANK: Final[dict[InterfaceClass, int]] = {
    "loopback": 0,
    "thunderbolt": 1,
    "ethernet": 2,
    "wifi": 3,
    "other": 4,
    "virtual": 5,
}
"""Lower is better for bulk. Loopback is first: it only ever reaches this very machine."""

_ARPHRD_ETHER: Final = 1
_ARPHRD_INFINIBAND: Final = 32
_ARPHRD_LOOPBACK: Final = 772
_IFF_UP: Final = 0x1
_VIRTUAL_NAME: Final = re.compile(r"(docker|br-|veth|virbr|tun|tap|wg|utun|tailscale|zt|cni|vmnet)")


class LinuxFacts(msgspec.Struct, frozen=True):
    """What sysfs says of one interface; the defaults are what a missing file means."""

    arp_type: int = 0
    driver: str = ""
    wireless: bool = False
    virtual: bool = False
    """No device stands behind it: a bridge, a veth, a tunnel, a bond, a VLAN."""
    up: bool = True
    speed_mbps: int = 0
    lowers: tuple[str, ...] = ()
    """Interfaces that it is built on (a bond's members, a VLAN's parent, a bridge's ports)."""


def read_sysfs(root: Path, name: str) -> LinuxFacts:
    """Read the facts of interface `name` under `root` (`/sys/class/net`)."""
    base = root / name
    if not base.exists():
        return LinuxFacts()
    device = base / "device"
    driver = device / "driver"
    flags = int(_read(base / "flags") or "0x1", 16)
    return LinuxFacts(
        arp_type=int(_read(base / "type") or 0),
        driver=driver.resolve().name if driver.exists() else "",
        wireless=(base / "wireless").exists() or (base / "phy80211").exists(),
        virtual=not device.exists(),
        up=bool(flags & _IFF_UP) and _read(base / "operstate") not in {"down", "lowerlayerdown"},
        speed_mbps=max(0, int(_read(base / "speed") or 0)),
        lowers=tuple(
            sorted(path.name.removeprefix("lower_") for path in base.glob("lower_*")),
        ),
    )


def classify_linux(facts: LinuxFacts, lowers: tuple[InterfaceClass, ...] = ()) -> InterfaceClass:
    """Return the class of an interface.

    Args:
        facts: what sysfs says of it.
        lowers: classes of the interfaces that it is built on. One built on hardware is as good as
            the worst of that hardware.
    """
    if facts.arp_type == _ARPHRD_LOOPBACK:
        return "loopback"
    if facts.driver.replace("_", "-") == "thunderbolt-net":
        return "thunderbolt"
    if facts.wireless:
        return "wifi"
    if facts.virtual:
        hardware: list[InterfaceClass] = [
            lower for lower in lowers if lower not in {"virtual", "loopback"}
        ]
        return max(hardware, key=lambda lower: RANK[lower]) if hardware else "virtual"
    if facts.arp_type in {_ARPHRD_ETHER, _ARPHRD_INFINIBAND}:
        return "ethernet"
    return "other"


def parse_hardware_ports(text: str) -> dict[str, str]:
    """Map device names to port names from `networksetup -listallhardwareports`."""
    ports: dict[str, str] = {}
    port = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Hardware Port":
            port = value.strip()
        elif key.strip() == "Device" and port and value.strip():
            ports[value.strip()] = port
            port = ""
    return ports


def classify_macos(name: str, port: str | None) -> InterfaceClass:
    """Return the class of an interface, by the name of its hardware port where it has one."""
    if name.startswith("lo"):
        return "loopback"
    if port is None:
        return "virtual" if _VIRTUAL_NAME.match(name) or name.startswith("bridge") else "other"
    lowered = port.lower()
    if "thunderbolt" in lowered and "ethernet" not in lowered:
        return "thunderbolt"
    if "wi-fi" in lowered or "airport" in lowered:
        return "wifi"
    if "ethernet" in lowered or "lan" in lowered:
        return "ethernet"
    return "other"


def _read(path: Path) -> str:
    # `speed` of an interface without carrier raises EINVAL on reading.
    try:
        return path.read_text().strip()
    except OSError:
        return ""
