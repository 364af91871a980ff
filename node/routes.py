"""Which of a peer's addresses to dial, over which interface of ours, in which order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final

import msgspec
from multiaddr import Multiaddr
from multiaddr.exceptions import BinaryParseError, ProtocolLookupError, StringParseError

from node.errors import BatonError
from node.interface_class import RANK
from node.interfaces import Interface, interfaces_towards, is_scoped
from protocols.gossip import InterfaceClass

__all__ = [
    "Route",
    "parse_address",
    "parse_peer",
    "peer_address",
    "rank_routes",
    "route_over",
    "tcp_address",
]


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
    interface: str
    """Empty when the address is in no network of ours and the kernel's routes decide."""
    speed_mbps: int = 0

    @property
    def pair(self) -> tuple[str, str]:
        """What tells it from other routes: the address, and the interface."""
        return self.address, self.interface

    @property
    def rank(self) -> tuple[int, int]:
        """Lower is better: by class, then by the interface's speed."""
        return RANK[self.klass], -self.speed_mbps


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


def route_over(address: str, interface: Interface) -> Route:
    """Return the route to an address over an interface."""
    return Route(address, interface.klass, interface.name, interface.speed_mbps)


def rank_routes(
    addresses: Iterable[str], interfaces: Sequence[Interface], *, restricted: bool
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
    """
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
        routes += ((False, route_over(plain, interface)) for interface in towards)
        if not towards and not restricted and _is_routable(ip):
            routes.append((True, Route(plain, "other", "")))
    routes.sort(key=lambda each: (each[0], each[1].rank, _directness(each[1].address)))
    return tuple(dict.fromkeys(route for _, route in routes))


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
