"""The network interfaces of this machine: their classes, and the addresses a peer could dial."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from pathlib import Path
from typing import Final, TypeAlias

import ifaddr
import msgspec
from loguru import logger

from node.errors import NoUsableInterface, UnknownInterface
from node.interface_class import (
    RANK,
    LinuxFacts,
    classify_linux,
    classify_macos,
    parse_hardware_ports,
    read_sysfs,
)
from protocols.gossip import InterfaceClass, InterfaceRecord

__all__ = ["Interface", "interface_towards", "list_interfaces", "select_interfaces"]

_SYSFS: Final = Path("/sys/class/net")
_NETWORKSETUP_TIMEOUT_S: Final = 5.0

Address: TypeAlias = IPv4Interface | IPv6Interface


class Interface(msgspec.Struct, frozen=True):
    """An interface that is up and has at least one usable address.

    Usable is what a peer can dial: no IPv6 link-local ones, which py-libp2p cannot dial for want
    of a scope.
    """

    name: str
    klass: InterfaceClass
    addresses: tuple[Address, ...]
    speed_mbps: int = 0

    @property
    def ips(self) -> tuple[str, ...]:
        """The addresses as text, without their prefix lengths."""
        return tuple(str(address.ip) for address in self.addresses)

    def record(self) -> InterfaceRecord:
        """Return what is gossiped of it."""
        return InterfaceRecord(self.name, self.klass, self.ips, self.speed_mbps)


def list_interfaces() -> tuple[Interface, ...]:
    """Return every interface that is up and has a usable address, best class first.

    Blocks for milliseconds on Linux, and for the time of one `networksetup` on macOS: call it in a
    thread.
    """
    ports = _hardware_ports() if sys.platform == "darwin" else {}
    interfaces: list[Interface] = []
    for adapter in ifaddr.get_adapters():
        addresses = usable_addresses(
            (ip.ip if isinstance(ip.ip, str) else ip.ip[0], ip.network_prefix) for ip in adapter.ips
        )
        if not addresses:
            continue
        if sys.platform == "darwin":
            klass, up, speed = classify_macos(adapter.name, ports.get(adapter.name)), True, 0
        else:
            facts = read_sysfs(_SYSFS, adapter.name)
            klass, up, speed = _classify(facts, _SYSFS), facts.up, facts.speed_mbps
        if up:
            interfaces.append(Interface(adapter.name, klass, addresses, speed))
    return tuple(sorted(interfaces, key=lambda each: (RANK[each.klass], each.name)))


def select_interfaces(
    interfaces: Sequence[Interface], names: Sequence[str] = ()
) -> tuple[Interface, ...]:
    """Return those that the node uses: the named ones, or all but loopback if there are others.

    Raises:
        UnknownInterface: a name that no interface with a usable address has.
        NoUsableInterface: none is left.
    """
    known = {each.name for each in interfaces}
    for name in names:
        if name not in known:
            raise UnknownInterface(
                f"no interface {name!r} is up with a usable address",
                f"use one of: {', '.join(sorted(known)) or 'none is'}",
            )
    if names:
        chosen = [each for each in interfaces if each.name in names]
    else:
        chosen = [each for each in interfaces if each.klass != "loopback"] or list(interfaces)
    if not chosen:
        raise NoUsableInterface(
            "no network interface is up with a usable address", "connect this machine to a network"
        )
    return tuple(chosen)


def interface_towards(ip: str, interfaces: Iterable[Interface]) -> Interface | None:
    """Return the interface whose network contains `ip`, the longest prefix first; None if routed.

    Raises:
        ValueError: `ip` is no address.
    """
    target = ip_address(ip)
    candidates = [
        (address.network.prefixlen, interface)
        for interface in interfaces
        for address in interface.addresses
        if target in address.network
    ]
    return max(candidates, key=lambda each: each[0])[1] if candidates else None


def usable_addresses(addresses: Iterable[tuple[str, int]]) -> tuple[Address, ...]:
    """Keep the (address, prefix length) pairs that a peer could dial, IPv4 first."""
    usable: list[Address] = []
    for text, prefix in addresses:
        address = ip_interface(f"{text.partition('%')[0]}/{prefix}")
        undialable = address.version == 6 and address.ip.is_link_local
        if not (undialable or address.ip.is_multicast or address.ip.is_unspecified):
            usable.append(address)
    return tuple(sorted(usable, key=lambda each: (each.version, each.ip.packed)))


def _classify(facts: LinuxFacts, root: Path) -> InterfaceClass:
    # One level is enough for what is seen in practice: a bond or VLAN on hardware, a bridge on it.
    return classify_linux(
        facts, tuple(classify_linux(read_sysfs(root, lower)) for lower in facts.lowers)
    )


def _hardware_ports() -> dict[str, str]:
    try:
        listing = subprocess.run(
            ["/usr/sbin/networksetup", "-listallhardwareports"],
            capture_output=True,
            text=True,
            timeout=_NETWORKSETUP_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("networksetup failed ({}): interfaces are classed by name only", error)
        return {}
    return parse_hardware_ports(listing.stdout)
