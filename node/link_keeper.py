"""Keeps the links to peers: takes connections in, beats on them, ends what is dead or surplus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import trio
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.swarm import Swarm
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.rcmgr import Direction
from loguru import logger

from node import heartbeat
from node.errors import PeerUnreachable
from node.interfaces import Interface, interfaces_towards
from node.libp2p_seam import endpoints, negotiate, remote_endpoint
from node.links import Link, LinkTable, TableSide
from node.routes import MAX_LINKS, Hardware, Route, route_between, tcp_address
from node.transport.bulk import BulkConnection
from node.transport.errors import TransportError
from node.transport.streams import ByteStream
from node.transport.tcp import Endpoints
from protocols.errors import ProtocolError
from protocols.gossip import InterfaceRecord
from protocols.link import LinkEnd

__all__ = ["LinkKeeper", "surplus"]

_CLOSE_TIMEOUT_S: Final = 2.0
_TIDY_S: Final = 2.0
_SURPLUS_FOR_S: Final = 4.0
"""How long a link is surplus before it is closed: the peer has long heard by then which is used."""
_STANDING_PROTOCOLS: Final = frozenset({heartbeat.PROTOCOL_ID, str(PROTOCOL_ID_V11)})
"""Of streams that are on a link for as long as it lives, whatever it is used for."""


def surplus(links: Iterable[Link], *, named: bool) -> tuple[Link, ...]:
    """Return the links to a peer that are of no use beside its others. Pure.

    One is enough for a pair of interfaces: both ends may have dialled at once, and one wire may
    have been dialled by its IPv4 and its IPv6 address. Virtual interfaces are of no use beside
    real ones unless the user has named them, and no more than `MAX_LINKS` are kept.

    Args:
        links: to one peer, the one in use first.
        named: whether the user has named the interfaces.
    """
    known = [link for link in links if link.route.interface and link.route.remote]
    real = any(link.route.klass != "virtual" for link in known)
    seen: set[Hardware] = set()
    found: list[Link] = []
    for link in known:
        unwanted = link.route.klass == "virtual" and real and not named
        enough = link.route.hardware in seen or len(seen) >= MAX_LINKS
        if not link.in_use and (unwanted or enough):
            found.append(link)
        else:
            seen.add(link.route.hardware)
    return tuple(found)


class LinkKeeper:
    """Owns the links of a host.

    Args:
        swarm: whose connections they are.
        peer_id: this node's.
        interfaces: what it uses.
        named: whether the user has named the interfaces.

    Attributes:
        table: the links.
    """

    def __init__(
        self, swarm: Swarm, peer_id: str, interfaces: Sequence[Interface], *, named: bool
    ) -> None:
        self.table = LinkTable(peer_id)
        self._swarm = swarm
        self._interfaces = tuple(interfaces)
        self._named = named
        self._nursery: trio.Nursery | None = None
        self._surplus_since: dict[Link, float] = {}

    def start(self, nursery: trio.Nursery) -> None:
        """Take connections in from now on; tasks run in `nursery`."""
        self._nursery = nursery
        nursery.start_soon(self._tidy)

    def stop(self) -> None:
        """Take no more connections in."""
        self._nursery = None

    def use_interfaces(self, interfaces: Sequence[Interface]) -> None:
        """Take note of this node's interfaces, and end the links whose address here has gone."""
        lost = _addresses(self._interfaces) - _addresses(interfaces)
        self._interfaces = tuple(interfaces)
        gone = [link for link in self.table.all if (link.end.interface, link.local_ip) in lost]
        self._end(gone, "the interface here is down or has lost its address")

    def know_interfaces(self, peer_id: str, interfaces: tuple[InterfaceRecord, ...]) -> None:
        """Take note of a peer's interfaces, and end the links to those that it has no more."""
        gone = self.table.know(peer_id, interfaces)
        self._end(gone, "the interface there is down or has lost its address")

    def connected(self, connection: SwarmConn) -> None:
        """Take a connection in."""
        if self._nursery is None:
            return
        ends, remote = endpoints(connection.muxed_conn), remote_endpoint(connection.muxed_conn)
        link = Link(
            connection.muxed_conn.peer_id.to_base58(),
            tcp_address(*remote) if remote is not None else "",
            self._end_of(ends, remote[0] if remote is not None else ""),
            connection,
            outbound=connection.direction is Direction.OUTBOUND,
            local_ip=ends.local.ip if ends is not None else "",
        )
        self.table.add(link)
        logger.info(
            "connected to {} over {} ({}) at {}, {}",
            link.peer_id,
            link.route.interface or "the default route",
            link.route.klass,
            link.route.address,
            "which we dialled" if link.outbound else "which it dialled",
        )
        self._nursery.start_soon(self._keep_alive, link)

    def route_of(self, connection: BulkConnection) -> Route:
        """Return the route of a connection that is no link."""
        ends, remote = endpoints(connection), remote_endpoint(connection)
        ip = remote[0] if remote is not None else ""
        address = tcp_address(*remote) if remote is not None else ""
        theirs = self.table.end_of(connection.peer_id.to_base58(), ip)
        return route_between(address, self._end_of(ends, ip), theirs)

    def disconnected(self, connection: SwarmConn) -> None:
        """Let a connection go that has ended."""
        link = self.table.on(connection.muxed_conn)
        if link is not None:
            self._forget(link)

    async def close(self, link: Link) -> None:
        """End a link; the streams on it break at both ends."""
        self._forget(link)
        # The goodbye may wait for a peer that is gone. Whatever becomes of it, the link has ended.
        with trio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await link.connection.close()
        self._swarm.remove_conn(link.connection)

    async def answer_heartbeats(self, stream: ByteStream) -> None:
        """Serve `heartbeat.PROTOCOL_ID`."""

        def find() -> TableSide | None:
            link = self.table.on(stream.connection)
            return TableSide(self.table, link) if link is not None else None

        await heartbeat.answer(stream, find)

    def _forget(self, link: Link) -> None:
        if self.table.remove(link):
            logger.info("the connection to {} at {} is closed", link.peer_id, link.route.address)

    def _end(self, links: Iterable[Link], reason: str) -> None:
        for link in links:
            logger.warning("lost {} at {}: {}", link.peer_id, link.route.address, reason)
            self.table.remove(link)
            if self._nursery is not None:
                self._nursery.start_soon(self.close, link)

    def _end_of(self, ends: Endpoints | None, remote_ip: str) -> LinkEnd:
        """Return the interface that a connection leaves by: its own address tells, if any does."""
        candidates = interfaces_towards(remote_ip, self._interfaces) if remote_ip else ()
        if ends is not None:
            local = ends.local
            candidates = (
                *(
                    each
                    for each in self._interfaces
                    if local.ip in each.ips and local.scope in {"", each.name}
                ),
                *candidates,
            )
        return candidates[0].end() if candidates else LinkEnd("", "other")

    async def _keep_alive(self, link: Link) -> None:
        try:
            stream = await negotiate(link.connection, heartbeat.PROTOCOL_ID)
            try:
                await heartbeat.beat(stream, TableSide(self.table, link))
            finally:
                await stream.reset()
        except (heartbeat.HeartbeatLost, TransportError, ProtocolError, PeerUnreachable) as error:
            if link in self.table:
                logger.warning("lost {} at {}: {}", link.peer_id, link.route.address, error)
            await self.close(link)

    async def _tidy(self) -> None:
        while True:
            await trio.sleep(_TIDY_S)
            for link in self._surplus_links():
                logger.info(
                    "closing a connection to {} at {}: another serves as well",
                    *(link.peer_id, link.route.address),
                )
                await self.close(link)

    def _surplus_links(self) -> list[Link]:
        """Return the links to close now: surplus for a while, and nothing goes on on them.

        Only the node that chooses the link closes any, so that never both ends of one pair do.
        """
        now = trio.current_time()
        found = {
            link: self._surplus_since.get(link, now)
            for peer_id in {link.peer_id for link in self.table.all}
            if self.table.chooses(peer_id)
            for link in surplus(self.table.to(peer_id), named=self._named)
        }
        self._surplus_since = found
        return [
            link
            for link, since in found.items()
            if now - since >= _SURPLUS_FOR_S and not _is_busy(link)
        ]


def _is_busy(link: Link) -> bool:
    streams = link.connection.get_streams()
    return any(str(each.get_protocol()) not in _STANDING_PROTOCOLS for each in streams)


def _addresses(interfaces: Sequence[Interface]) -> set[tuple[str, str]]:
    return {(interface.name, ip) for interface in interfaces for ip in interface.ips}
