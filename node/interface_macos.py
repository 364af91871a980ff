"""Network interfaces as macOS describes them: ports by `networksetup`, state by `ifconfig`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec
from loguru import logger

from node.interface_class import RANK
from protocols.gossip import InterfaceClass

__all__ = ["MacFacts", "classify_macos", "parse_hardware_ports", "parse_ifconfig", "read_macos"]

_TIMEOUT_S: Final = 5.0
_NEVER: Final = re.compile(r"(awdl|llw|anpi|ap|p2p|gif|stf|pktap|iptap|XHC|VHC|EHC)\d*$")
"""Apple's own: AirDrop, the access point, the link to the coprocessor, and no networks at all."""
_VIRTUAL: Final = re.compile(r"(bridge|utun|tun|tap|ipsec|ppp|vmnet|vmenet|feth|zt)\d*$")
_HEADER: Final = re.compile(r"^(\S+): flags=[0-9a-f]+<([^>]*)>")
_MEDIA: Final = re.compile(r"\((\d+)(G?)base", re.IGNORECASE)


class MacFacts(msgspec.Struct, frozen=True):
    """What `ifconfig` says of one interface."""

    up: bool = True
    """Not switched off, and something is at the other end as far as it can tell."""
    speed_mbps: int = 0
    members: tuple[str, ...] = ()
    """Of a bridge."""


def parse_ifconfig(text: str) -> dict[str, MacFacts]:
    """Read what `ifconfig -a` prints."""
    interfaces: dict[str, MacFacts] = {}
    name = ""
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            name = header[1]
            interfaces[name] = MacFacts(up="UP" in header[2].split(","))
        elif name:
            interfaces[name] = _with_line(interfaces[name], line.strip())
    return interfaces


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


def classify_macos(name: str, ports: Mapping[str, str], facts: MacFacts) -> InterfaceClass | None:
    """Return the class of an interface; None for those that are never used.

    Args:
        name: of the interface.
        ports: the hardware ports by device name, which say what it is.
        facts: what ifconfig says of it. A bridge without a port is as good as the worst of its
            members, and what runs at a speed of Ethernet is Ethernet, whatever its maker calls it.
    """
    if name.startswith("lo"):
        return "loopback"
    if _NEVER.match(name):
        return None
    if name in ports:
        klass = _class_of_port(ports[name])
        return "ethernet" if klass == "other" and facts.speed_mbps else klass
    members: list[InterfaceClass] = [_class_of_port(ports[m]) for m in facts.members if m in ports]
    if members:
        return max(members, key=lambda klass: RANK[klass])
    return "virtual" if _VIRTUAL.match(name) else "other"


def read_macos(names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, MacFacts]]:
    """Return hardware ports and facts; what cannot be read is empty. Blocks for a moment.

    Args:
        names: the interfaces that there are; ports are asked for anew only when they change.
    """
    ports: dict[str, str] = {}
    facts: dict[str, MacFacts] = {}
    try:
        ports = _hardware_ports(names)
        facts = parse_ifconfig(_output("/sbin/ifconfig", "-a"))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("{}: interfaces are classed by what is known without", error)
    return ports, facts


@lru_cache(maxsize=1)
def _hardware_ports(names: tuple[str, ...]) -> dict[str, str]:
    # It takes a tenth of a second, and interfaces are looked at often.
    return parse_hardware_ports(_output("/usr/sbin/networksetup", "-listallhardwareports"))


def _output(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    ).stdout


def _with_line(facts: MacFacts, line: str) -> MacFacts:
    key, _, value = line.partition(": ")
    match key:
        case "status":
            return msgspec.structs.replace(facts, up=facts.up and value != "inactive")
        case "member":
            return msgspec.structs.replace(facts, members=(*facts.members, value.split(" ")[0]))
        case "media":
            speed = _MEDIA.search(value)
            if speed is None:
                return facts
            mbps = int(speed[1]) * (1000 if speed[2] else 1)
            return msgspec.structs.replace(facts, speed_mbps=mbps)
        case _:
            return facts


def _class_of_port(port: str) -> InterfaceClass:
    lowered = port.lower()
    if "thunderbolt" in lowered and "ethernet" not in lowered:
        return "thunderbolt"
    if "wi-fi" in lowered or "airport" in lowered:
        return "wifi"
    if "ethernet" in lowered or re.search(r"\blan\b", lowered):
        return "ethernet"
    return "other"
