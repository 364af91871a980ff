"""The network interfaces of this machine: their classes, and the addresses a peer could dial."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
)
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import ifaddr
import msgspec

from node.errors import NoUsableInterface, UnknownInterface
from node.interface_class import (
    RANK,
    LinuxFacts,
    classify_linux,
    read_sysfs,
)
from node.interface_macos import MacFacts, classify_macos, read_macos
from protocols.gossip import InterfaceClass, InterfaceRecord
from protocols.link import LinkEnd

__all__ = [
    "Interface",
    "describe",
    "interfaces_towards",
    "is_scoped",
    "left_out",
    "list_interfaces",
    "select_interfaces",
]

_SYSFS: Final = Path("/sys/class/net")
_IF_INET6: Final = Path("/proc/net/if_inet6")
_IFA_UNREADY: Final = 0x40 | 0x08
"""IFA_F_TENTATIVE and IFA_F_DADFAILED."""

Address: TypeAlias = IPv4Interface | IPv6Interface


class Interface(msgspec.Struct, frozen=True):
    """An interface that is up and has at least one usable address.

    Usable is what a peer could dial, IPv6 link-local addresses included. None has a scope: here it
    is the interface itself, and elsewhere it would mean nothing.
    """

    name: str
    klass: InterfaceClass
    addresses: tuple[Address, ...]
    """IPv4 first, link-local IPv6 last."""
    speed_mbps: int = 0
    index: int = 0
    """The kernel's number for it: a new one when it is unplugged and plugged in again."""

    @property
    def ips(self) -> tuple[str, ...]:
        """The addresses as text, without their prefix lengths."""
        return tuple(str(address.ip) for address in self.addresses)

    def source_towards(self, ip: str) -> str:
        """Return the address of it that is in one network with `ip`; empty if none is."""
        target = ip_address(ip)
        return next((str(own.ip) for own in self.addresses if target in own.network), "")

    def record(self) -> InterfaceRecord:
        """Return what is gossiped of it."""
        return InterfaceRecord(self.name, self.klass, self.ips, self.speed_mbps)

    def end(self) -> LinkEnd:
        """Return what is told of it to the other end of a link."""
        return LinkEnd(self.name, self.klass, self.speed_mbps)


def list_interfaces(
    classes: Mapping[str, InterfaceClass] = MappingProxyType({}),
) -> tuple[Interface, ...]:
    """Return every interface that is up and has a usable address, best class first.

    Args:
        classes: what the user says that interfaces are, by name; their hardware is not asked.

    Blocks for milliseconds on Linux, and for the time of one `networksetup` on macOS: call it in a
    thread.
    """
    unready = _unready_addresses()
    adapters = tuple(ifaddr.get_adapters())
    hardware = _hardware(tuple(adapter.name for adapter in adapters))
    interfaces: list[Interface] = []
    for adapter in adapters:
        found = [
            (ip.ip if isinstance(ip.ip, str) else ip.ip[0], ip.network_prefix) for ip in adapter.ips
        ]
        addresses = usable_addresses(
            each for each in found if (adapter.name, each[0]) not in unready
        )
        if addresses and adapter.name in hardware:
            klass, speed = hardware[adapter.name]
            klass = classes.get(adapter.name, klass)
            interfaces.append(Interface(adapter.name, klass, addresses, speed, adapter.index or 0))
    return tuple(sorted(interfaces, key=lambda each: (RANK[each.klass], each.name)))


def select_interfaces(
    interfaces: Sequence[Interface], names: Sequence[str] = ()
) -> tuple[Interface, ...]:
    """Return those that the node uses: the named ones, else the real ones.

    Virtual ones (docker, bridges without hardware, tunnels) are used where nothing else is, as in a
    container, and loopback where there is nothing at all.

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
        real = [each for each in interfaces if each.klass not in {"loopback", "virtual"}]
        virtual = [each for each in interfaces if each.klass == "virtual"]
        chosen = real or virtual or list(interfaces)
    if not chosen:
        raise NoUsableInterface(
            "no network interface is up with a usable address", "connect this machine to a network"
        )
    return tuple(chosen)


def left_out(interfaces: Sequence[Interface], chosen: Sequence[Interface]) -> tuple[Interface, ...]:
    """Return the virtual interfaces that are not used since there are real ones."""
    return tuple(each for each in interfaces if each.klass == "virtual" and each not in chosen)


def describe(interfaces: Iterable[Interface]) -> str:
    """Return interfaces as a user wants to read them."""
    listed = ", ".join(f"{each.name} ({each.klass}: {', '.join(each.ips)})" for each in interfaces)
    return listed or "none"


def interfaces_towards(ip: str, interfaces: Sequence[Interface]) -> tuple[Interface, ...]:
    """Return the interfaces that may lead straight to an address; none if it is only routed to.

    They are those whose network contains it with the longest prefix. Several have the same for a
    link-local address, IPv4 or IPv6, which may be at the end of any cable. If `ip` has a scope
    (`fe80::1%eth0`), only the interface of that name is left.

    Raises:
        ValueError: `ip` is no address.
    """
    bare, _, scope = ip.partition("%")
    target = ip_address(bare)
    prefixes = {
        interface.name: max(lengths)
        for interface in interfaces
        if (lengths := _prefixes_containing(target, interface))
    }
    longest = max(prefixes.values(), default=0)
    return tuple(
        interface
        for interface in interfaces
        if prefixes.get(interface.name) == longest and scope in {"", interface.name}
    )


def is_scoped(ip: str) -> bool:
    """Whether an address means something only together with an interface: link-local IPv6."""
    address = ip_address(ip)
    return address.version == 6 and address.is_link_local


def usable_addresses(addresses: Iterable[tuple[str, int]]) -> tuple[Address, ...]:
    """Keep the (address, prefix length) pairs that a peer could dial, link-local IPv6 last."""
    usable: list[Address] = []
    for text, prefix in addresses:
        address = ip_interface(f"{text.partition('%')[0]}/{prefix}")
        if not (address.ip.is_multicast or address.ip.is_unspecified):
            usable.append(address)
    return tuple(sorted(usable, key=_address_order))


def parse_unready(text: str) -> frozenset[tuple[str, str]]:
    """Return the (interface, address) pairs that cannot be bound, from Linux's `if_inet6`.

    They are being checked for duplicates on the link (RFC 4862), or the check has found one.
    """
    unready: set[tuple[str, str]] = set()
    for line in text.splitlines():
        # Address, index, prefix length, scope, flags, name.
        match line.split():
            case [address, _, _, _, flags, name] if int(flags, 16) & _IFA_UNREADY:
                unready.add((name, str(IPv6Address(bytes.fromhex(address)))))
            case _:
                continue
    return frozenset(unready)


def _address_order(address: Address) -> tuple[int, bool, bytes]:
    return address.version, address.version == 6 and address.ip.is_link_local, address.ip.packed


def _prefixes_containing(target: IPv4Address | IPv6Address, interface: Interface) -> list[int]:
    return [
        address.network.prefixlen for address in interface.addresses if target in address.network
    ]


def _classify(facts: LinuxFacts, root: Path) -> InterfaceClass:
    # One level is enough for what is seen in practice: a bond or VLAN on hardware, a bridge on it.
    return classify_linux(
        facts, tuple(classify_linux(read_sysfs(root, lower)) for lower in facts.lowers)
    )


def _unready_addresses() -> frozenset[tuple[str, str]]:
    try:
        return parse_unready(_IF_INET6.read_text())
    except OSError:
        # Not Linux, or a kernel without IPv6.
        return frozenset()


def _hardware(names: tuple[str, ...]) -> dict[str, tuple[InterfaceClass, int]]:
    """Return class and speed of the interfaces that are up and of use."""
    hardware: dict[str, tuple[InterfaceClass, int]] = {}
    if sys.platform == "darwin":
        ports, all_facts = read_macos(names)
        for name in names:
            facts = all_facts.get(name, MacFacts())
            klass = classify_macos(name, ports, facts)
            if klass is not None and facts.up:
                hardware[name] = klass, facts.speed_mbps
        return hardware
    for name in names:
        facts = read_sysfs(_SYSFS, name)
        if facts.up:
            hardware[name] = _classify(facts, _SYSFS), facts.speed_mbps
    return hardware
