"""Which of a peer's addresses to dial, over which interface of ours, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

import msgspec
from multiaddr import Multiaddr
from multiaddr.exceptions import BinaryParseError, ProtocolLookupError, StringParseError

from node.errors import BatonError
from node.interface_class import RANK
from node.interfaces import Interface, interface_towards
from protocols.gossip import InterfaceClass

__all__ = ["Route", "parse_address", "parse_peer", "peer_address", "rank_routes", "tcp_address"]


class Route(msgspec.Struct, frozen=True):
    """A way to a peer: one of its addresses, and the interface of ours that leads there."""

    address: str
    """A multiaddr without the peer id."""
    klass: InterfaceClass
    interface: str
    """Empty when the address is in no network of ours and the kernel's routes decide."""
    speed_mbps: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Lower is better: by class, then by the interface's speed."""
        return RANK[self.klass], -self.speed_mbps


def tcp_address(ip: str, port: int) -> str:
    """Return the multiaddr of a TCP endpoint."""
    return f"/ip{ip_address(ip).version}/{ip}/tcp/{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Return IP address and port of a TCP multiaddr.

    Raises:
        ValueError: it is none.
    """
    try:
        parsed = Multiaddr(address)
        names = [protocol.name for protocol in parsed.protocols()]
        if len(names) < 2 or names[0] not in {"ip4", "ip6"} or names[1] != "tcp":
            raise ValueError(f"{address!r} is not the multiaddr of a TCP endpoint")
        return str(parsed.value_for_protocol(names[0])), int(parsed.value_for_protocol("tcp") or 0)
    except (StringParseError, BinaryParseError, ProtocolLookupError) as error:
        raise ValueError(f"{address!r} is no multiaddr: {error}") from error


def parse_peer(address: str) -> tuple[str, str]:
    """Split `/ip4/10.0.0.2/tcp/4001/p2p/PEER` into the peer id and the rest.

    Raises:
        BatonError: it is no such multiaddr.
    """
    try:
        parsed = Multiaddr(address)
        peer_id = parsed.value_for_protocol("p2p")
        parsed.value_for_protocol("tcp")
    except (StringParseError, BinaryParseError, ProtocolLookupError) as error:
        raise BatonError(
            f"{address!r} names no peer ({error})",
            "write it as /ip4/ADDRESS/tcp/PORT/p2p/PEER; `baton status --json` at the other node "
            "shows its own under `addresses`",
        ) from error
    return str(peer_id), address.removesuffix(f"/p2p/{peer_id}")


def peer_address(peer_id: str, address: str) -> str:
    """Join what `parse_peer` splits."""
    return f"{address}/p2p/{peer_id}"


def rank_routes(
    addresses: Iterable[str], interfaces: Sequence[Interface], *, restricted: bool
) -> tuple[Route, ...]:
    """Return the routes to a peer, best first. Pure.

    Addresses on a network of ours come before those that only the kernel's routes lead to, whose
    class is `other` and whose interface is unknown. A loopback address is a route only when we
    use loopback ourselves, and never to another machine.

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
        interface = interface_towards(ip, interfaces)
        if interface is not None:
            route = Route(address, interface.klass, interface.name, interface.speed_mbps)
            routes.append((False, route))
        elif not restricted and not ip_address(ip).is_loopback:
            routes.append((True, Route(address, "other", "")))
    routes.sort(key=lambda each: (each[0], each[1].rank, ":" in parse_address(each[1].address)[0]))
    return tuple(route for _, route in routes)
