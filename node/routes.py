"""Which of a peer's addresses to dial, over which interface of ours, in which order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final, TypeAlias

import msgspec
from multiaddr import Multiaddr
from multiaddr.exceptions import BinaryParseError, ProtocolLookupError, StringParseError

from node.errors import BatonError
from node.interface_class import RANK
from node.interfaces import Interface, interfaces_towards, is_scoped
from protocols.gossip import InterfaceClass, InterfaceRecord
from protocols.link import LinkEnd

__all__ = [
    "MAX_LINKS",
    "Hardware",
    "Route",
    "choose_pairs",
    "parse_address",
    "parse_peer",
    "peer_address",
    "rank_routes",
    "route_between",
    "tcp_address",
]

MAX_LINKS: Final = 3
"""Connections that are kept to one peer, each over other hardware than the rest."""

Hardware: TypeAlias = tuple[str, str]
"""The names of the interface of ours and of the peer's that a route goes between; empty for one
that is not known."""

_ZONE: Final = re.compile(r"/ip6zone/([^/%]+)(?=/ip6/)")
_SCOPED: Final = re.compile(r"(/ip6/[^/%]+)%([^/%]+)(?=/)")


class Route(msgspec.Struct, frozen=True):
    """A way to a peer: one of its addresses, and the interface of ours that leads there.

    One address may be reachable over several interfaces, and a link-local one only says where it
    is together with the interface: what tells routes apart is the pair.
    """

    address: str
    """A multiaddr without the peer id, and without a scope: that is the interface."""
    klass: InterfaceClass
    """The worse of both ends', as far as they are known."""
    interface: str
    """Empty when the address is in no network of ours and the kernel's routes decide."""
    speed_mbps: int = 0
    """The lower of both ends'; 0 when neither says."""
    remote: str = ""
    """The peer's interface that has the address; empty while that is not known."""

    @property
    def pair(self) -> tuple[str, str]:
        """What tells it from other routes: the address, and the interface."""
        return self.address, self.interface

    @property
    def rank(self) -> tuple[int, int]:
        """Lower is better: by class, then by the interfaces' speed."""
        return RANK[self.klass], -self.speed_mbps

    @property
    def hardware(self) -> Hardware:
        """The interfaces at both ends."""
        return self.interface, self.remote

    def covers(self, other: Route) -> bool:
        """Whether a connection over this route makes one over the other superfluous."""
        if self.interface != other.interface:
            return False
        return self.remote == other.remote or not self.remote or not other.remote


def route_between(address: str, ours: LinkEnd, theirs: LinkEnd | None) -> Route:
    """Return the route between two interfaces. Pure, and the same class and speed from both ends.

    Args:
        address: the peer's, as a multiaddr.
        ours: the interface here.
        theirs: the interface there; None while it is not known.
    """
    if theirs is None:
        return Route(address, ours.klass, ours.interface, ours.speed_mbps)
    speeds = [end.speed_mbps for end in (ours, theirs) if end.speed_mbps]
    return Route(
        address,
        max(ours.klass, theirs.klass, key=RANK.__getitem__),
        ours.interface,
        min(speeds, default=0),
        theirs.interface,
    )


def tcp_address(ip: str, port: int) -> str:
    """Return the multiaddr of a TCP endpoint. A scope, as in `fe80::1%eth0`, is left out."""
    bare = ip.partition("%")[0]
    return f"/ip{ip_address(bare).version}/{bare}/tcp/{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Return IP address and port of a TCP multiaddr.

    A link-local IPv6 address may have a scope, as in `/ip6zone/eth0/ip6/fe80::1/tcp/4001` or
    `/ip6/fe80::1%eth0/tcp/4001`; the IP address is `fe80::1%eth0` then.

    Raises:
        ValueError: it is none.
    """
    plain, scope = _split_scope(address)
    try:
        parsed = Multiaddr(plain)
        names = [protocol.name for protocol in parsed.protocols()]
        if len(names) < 2 or names[0] not in {"ip4", "ip6"} or names[1] != "tcp":
            raise ValueError(f"{address!r} is not the multiaddr of a TCP endpoint")
        ip, port = str(parsed.value_for_protocol(names[0])), parsed.value_for_protocol("tcp")
    except (StringParseError, BinaryParseError, ProtocolLookupError) as error:
        raise ValueError(f"{address!r} is no multiaddr: {error}") from error
    if scope and not ip_address(ip).is_link_local:
        raise ValueError(f"{address!r} has a scope, but is not link-local")
    return f"{ip}%{scope}" if scope else ip, int(port or 0)


def parse_peer(address: str) -> tuple[str, str]:
    """Split `/ip4/10.0.0.2/tcp/4001/p2p/PEER` into the peer id and the rest.

    Raises:
        BatonError: it is no such multiaddr.
    """
    try:
        peer_id = Multiaddr(_split_scope(address)[0]).value_for_protocol("p2p")
        endpoint = address.removesuffix(f"/p2p/{peer_id}")
        parse_address(endpoint)
    except (StringParseError, BinaryParseError, ProtocolLookupError, ValueError) as error:
        raise BatonError(
            f"{address!r} names no peer ({error})",
            "write it as /ip4/ADDRESS/tcp/PORT/p2p/PEER, or /ip6zone/INTERFACE/ip6/... for a "
            "link-local address behind that interface of this machine; `baton status --json` at "
            "the other node shows its own under `addresses`",
        ) from error
    return str(peer_id), endpoint


def peer_address(peer_id: str, address: str) -> str:
    """Join what `parse_peer` splits."""
    return f"{address}/p2p/{peer_id}"


def rank_routes(
    addresses: Iterable[str],
    interfaces: Sequence[Interface],
    *,
    restricted: bool,
    theirs: Sequence[InterfaceRecord] = (),
) -> tuple[Route, ...]:
    """Return the routes to a peer, best first. Pure.

    Addresses on a network of ours come before those that only the kernel's routes lead to, whose
    class is `other` and whose interface is unknown. An address that may be behind several of our
    interfaces is a route over each. A loopback address is a route only when we use loopback
    ourselves, and never to another machine.

    Args:
        addresses: multiaddrs that the peer announces; those that are not TCP are left out.
        interfaces: what this node uses.
        restricted: whether the user named the interfaces; then nothing is dialled beyond them.
        theirs: the peer's interfaces, as far as they are known.
    """
    ends = {
        ip: LinkEnd(each.name, each.klass, each.speed_mbps)
        for each in theirs
        for ip in each.addresses
    }
    routes: list[tuple[bool, Route]] = []
    for address in dict.fromkeys(addresses):
        try:
            ip, port = parse_address(address)
        except ValueError:
            continue
        if port == 0:
            continue
        plain = tcp_address(ip, port)
        towards = interfaces_towards(ip, interfaces)
        routes += (
            (False, route_between(plain, interface.end(), ends.get(ip.partition("%")[0])))
            for interface in towards
        )
        if not towards and not restricted and _is_routable(ip):
            routes.append((True, Route(plain, "other", "")))
    routes.sort(key=lambda each: (each[0], each[1].rank, _directness(each[1].address)))
    return tuple(dict.fromkeys(route for _, route in routes))


def choose_pairs(
    routes: Sequence[Route], *, restricted: bool, limit: int = MAX_LINKS
) -> tuple[tuple[Route, ...], ...]:
    """Choose the connections to keep to a peer: one per pair of interfaces, best first. Pure.

    Each adds hardware that those before it do not use, so that the loss of one interface leaves
    the others. Virtual interfaces are not used beside real ones, unless the user named them.

    Args:
        routes: ranked; those that only the kernel's routes lead to are left out.
        restricted: whether the user named the interfaces.
        limit: of pairs.

    Returns:
        The routes of each pair, any of which will do, best first.
    """
    usable = [route for route in routes if route.interface]
    real = [route for route in usable if route.klass != "virtual"]
    groups: dict[Hardware, list[Route]] = {}
    for route in usable if restricted else real or usable:
        groups.setdefault(route.hardware, []).append(route)
    chosen: list[tuple[Route, ...]] = []
    here: set[str] = set()
    there: set[str] = set()
    while groups and len(chosen) < limit:
        # `min` takes the first of several, and they are in order of rank.
        pair = min(groups, key=lambda each: (each[0] in here) + (each[1] in there))
        if pair[0] in here and pair[1] in there:
            break
        here.add(pair[0])
        there.add(pair[1])
        chosen.append(tuple(groups.pop(pair)))
    return tuple(chosen)


def _is_routable(ip: str) -> bool:
    return not ip_address(ip).is_loopback and not is_scoped(ip)


def _directness(address: str) -> tuple[bool, bool]:
    """Lower is tried first: IPv4, then what surely is where its prefix says it is."""
    ip, _ = parse_address(address)
    return is_scoped(ip), ":" in ip


def _split_scope(address: str) -> tuple[str, str]:
    """Take the scope out of a multiaddr, which the library cannot parse with one."""
    for form, kept in ((_ZONE, ""), (_SCOPED, r"\1")):
        match = form.search(address)
        if match is not None:
            return form.sub(kept, address, count=1), match.groups()[-1]
    return address, ""
