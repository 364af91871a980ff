"""Connections that carry bulk data alone: one per peer and route, dialled when there is some.

Heartbeats, gossip and small requests stay on the links, and so never wait behind a transfer. A bulk
connection has no heartbeat of its own: it ends with the last link over the same interfaces. What is
idle for long is closed by the side that has dialled it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

import trio
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable
from loguru import logger

from node.errors import PeerUnreachable
from node.libp2p_seam import negotiate
from node.routes import MAX_LINKS, Hardware, Route
from node.transport.bulk import BulkConnection
from node.transport.conduct import Conduct
from node.transport.guard import guarded
from node.transport.inbound import InboundStreams
from node.transport.streams import ByteStream

__all__ = ["BulkConnections", "DialBulk"]

DialBulk: TypeAlias = Callable[[str, Route], Awaitable[BulkConnection]]
"""Dials a peer over a route; raises `PeerUnreachable`, within seconds."""

MAX_INBOUND_PER_PEER: Final = 2 * MAX_LINKS
"""One per route, and as many that are on their way out."""
MAX_INBOUND: Final = 256
IDLE_S: Final = 60.0
"""For which an idle connection is kept by the side that has dialled it; the other side waits twice
as long, so that it hardly ever closes one that is about to be used."""
_TIDY_S: Final = 5.0
_NEGOTIATION_S: Final = 2.0
_AVOID_S: Final = 60.0
"""How long a way is left alone over which no bulk connection came about."""
_CLOSE_S: Final = 2.0

_Way: TypeAlias = tuple[str, Hardware]
"""A peer, and the interfaces at both ends of a route to it."""


class BulkConnections:
    """Owns them, in both directions.

    Args:
        dial: makes one.
        conduct: told of peers that open streams and talk nonsense on them.
    """

    def __init__(self, dial: DialBulk, conduct: Conduct) -> None:
        self._dial = dial
        self._multiselect = Multiselect()
        self._streams = InboundStreams(self._multiselect, conduct)
        self._open: dict[BulkConnection, _Entry] = {}
        self._dialling: dict[_Way, trio.Lock] = {}
        self._avoided: dict[_Way, float] = {}
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery) -> None:
        """Dial and accept from now on; tasks run in `nursery`."""
        self._nursery = nursery
        nursery.start_soon(self._tidy)

    def stop(self) -> None:
        """Take no more connections in."""
        self._nursery = None

    def set_handler(self, protocol: str, handler: StreamHandlerFn) -> None:
        """Serve streams of `protocol` that peers open on bulk connections."""
        self._multiselect.add_handler(TProtocol(protocol), handler)

    @property
    def routes(self) -> tuple[tuple[str, Route], ...]:
        """Peer and route of every open connection."""
        return tuple((entry.peer_id, entry.route) for entry in self._open.values())

    @property
    def idle(self) -> int:
        """How many open connections have no stream."""
        return sum(entry.idle for entry in self._open.values())

    def route_of(self, connection: object) -> Route | None:
        """Return the route of a connection; None if it is none of these."""
        entry = self._open.get(connection) if isinstance(connection, BulkConnection) else None
        return entry.route if entry is not None else None

    async def open_stream(self, peer_id: str, routes: Iterable[Route], protocol: str) -> ByteStream:
        """Open a stream on the bulk connection over one of `routes`, which is dialled if need be.

        Args:
            peer_id: the peer.
            routes: over one pair of interfaces, the best first.
            protocol: of the stream.

        Raises:
            PeerUnreachable: there is none and none comes about; what this costs is some seconds,
                once a minute.
        """
        routes = tuple(routes)
        if not routes:
            raise PeerUnreachable(f"no address of {peer_id} is known on this route")
        connection = await self._connection(peer_id, routes)
        return await negotiate(connection, protocol, _NEGOTIATION_S)

    async def take(self, connection: BulkConnection, route: Route) -> None:
        """Serve a connection that a peer has opened, if there is room for it."""
        peer_id = connection.peer_id.to_base58()
        inbound = [each for each in self._open.values() if not each.outbound]
        of_peer = [each for each in inbound if each.peer_id == peer_id]
        if len(of_peer) >= MAX_INBOUND_PER_PEER or len(inbound) >= MAX_INBOUND:
            idle = [each for each in of_peer if each.idle]
            logger.debug("{} opens one bulk connection more than it may", peer_id)
            if not idle:
                await _end(connection)
                return
            await self._close(min(idle, key=lambda each: each.used_at).connection)
        await self._add(connection, peer_id, route, outbound=False)

    def end(self, peer_id: str, links: Iterable[Route]) -> None:
        """End the connections to a peer whose interfaces none of its links uses any more.

        Args:
            peer_id: the peer.
            links: the routes of the links to it that there still are.
        """
        alive = tuple(links)
        for entry in self._to(peer_id):
            if not any(route.covers(entry.route) for route in alive):
                logger.info("ending the bulk connection to {}: its link is lost", peer_id)
                self._open.pop(entry.connection, None)
                if self._nursery is not None:
                    self._nursery.start_soon(_end, entry.connection)

    async def disconnect(self, peer_id: str) -> None:
        """Close every connection to a peer."""
        for entry in self._to(peer_id):
            await self._close(entry.connection)

    async def _connection(self, peer_id: str, routes: tuple[Route, ...]) -> BulkConnection:
        way = peer_id, routes[0].hardware
        async with self._dialling.setdefault(way, trio.Lock()):
            for entry in self._to(peer_id):
                usable = entry.outbound and entry.connection.is_established
                if usable and entry.route.hardware == routes[0].hardware:
                    entry.used_at = trio.current_time()
                    return entry.connection
            if trio.current_time() < self._avoided.get(way, 0.0):
                raise PeerUnreachable(f"{peer_id} took no bulk connection a moment ago")
            return await self._dial_way(way, routes)

    async def _dial_way(self, way: _Way, routes: tuple[Route, ...]) -> BulkConnection:
        peer_id = way[0]
        try:
            connection = await self._dial(peer_id, routes[0])
        except PeerUnreachable as error:
            logger.info("{}: bulk goes over the link to it ({})", peer_id, error.problem)
            self._avoided[way] = trio.current_time() + _AVOID_S
            raise
        await self._add(connection, peer_id, routes[0], outbound=True)
        await connection.event_started.wait()
        return connection

    async def _add(
        self, connection: BulkConnection, peer_id: str, route: Route, *, outbound: bool
    ) -> None:
        if self._nursery is None:
            await _end(connection)
            raise PeerUnreachable("this node is leaving")
        self._open[connection] = entry = _Entry(connection, peer_id, route, outbound=outbound)
        logger.debug("bulk connection with {} over {!r}", peer_id, route.pair)
        self._nursery.start_soon(self._run, entry)

    async def _run(self, entry: _Entry) -> None:
        """Run a connection to its end, and the streams that the peer opens on it."""
        connection = entry.connection
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.start)
                nursery.start_soon(self._serve, connection)
        finally:
            self._open.pop(connection, None)

    async def _serve(self, connection: BulkConnection) -> None:
        serve = guarded(self._streams.serve)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await connection.next_stream()
                except MuxedConnUnavailable:
                    return
                nursery.start_soon(serve, stream)

    async def _close(self, connection: BulkConnection) -> None:
        self._open.pop(connection, None)
        await _end(connection)

    async def _tidy(self) -> None:
        while True:
            await trio.sleep(_TIDY_S)
            now = trio.current_time()
            for entry in list(self._open.values()):
                if not entry.idle:
                    entry.used_at = now
                elif now - entry.used_at > (IDLE_S if entry.outbound else 2 * IDLE_S):
                    await self._close(entry.connection)
            self._avoided = {way: until for way, until in self._avoided.items() if until > now}
            self._dialling = {
                way: lock for way, lock in self._dialling.items() if lock.statistics().owner
            }

    def _to(self, peer_id: str) -> list[_Entry]:
        return [each for each in self._open.values() if each.peer_id == peer_id]


class _Entry:
    def __init__(
        self, connection: BulkConnection, peer_id: str, route: Route, *, outbound: bool
    ) -> None:
        self.connection = connection
        self.peer_id = peer_id
        self.route = route
        self.outbound = outbound
        self.used_at = trio.current_time()

    @property
    def idle(self) -> bool:
        return not self.connection.session.streams


async def _end(connection: BulkConnection) -> None:
    with trio.move_on_after(_CLOSE_S, shield=True):
        await connection.close()
