"""What kind of hardware a network interface is, and how good; from sysfs on Linux.

An address says nothing of it: 169.254.x.y may be Thunderbolt, or an Ethernet without DHCP.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from protocols.gossip import InterfaceClass

__all__ = [
    "RANK",
    "LinuxFacts",
    "classify_linux",
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
_UNKNOWN_SPEED: Final = 2**31


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
        speed_mbps=_speed(_read(base / "speed")),
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


def _speed(text: str) -> int:
    # Unknown is -1, or as older kernels print that, 2**32 - 1.
    return int(text) if text.isascii() and text.isdigit() and int(text) < _UNKNOWN_SPEED else 0


def _read(path: Path) -> str:
    # `speed` of an interface without carrier raises EINVAL on reading.
    try:
        return path.read_text().strip()
    except OSError:
        return ""
