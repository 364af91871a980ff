"""The libp2p host as the rest of the node uses it: links to peers, and streams over them.

Routes are dialled one by one, since `dial_peer` tries one address per transport and then blocks the
peer for a minute. A silent loss of a link goes unnoticed below, so each has a heartbeat of ours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

import trio
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TProtocol
from libp2p.network.config import RetryConfig
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.rcmgr import Direction
from loguru import logger

from node import heartbeat
from node.errors import NoUsableInterface, PeerUnreachable
from node.interfaces import Interface, interfaces_towards, is_scoped
from node.libp2p_seam import (
    ConnectionObserver,
    caused_by,
    connection_config,
    endpoints,
    forward_log,
    negotiate,
    remote_endpoint,
    upgrade_inbound,
    upgrade_outbound,
)
from node.links import Link, LinkListener, LinkTable
from node.listening import AnnouncedAddresses, Listening, check_port_free
from node.routes import Route, parse_address, route_over, tcp_address
from node.transport.conduct import Offence
from node.transport.errors import TransportError
from node.transport.guard import byte_stream_handler
from node.transport.half_open import HalfOpen
from node.transport.host import new_fast_host
from node.transport.noise import SecretDiffers
from node.transport.streams import ByteStream
from node.transport.tcp import endpoints_of, open_stream
from node.warden import Warden
from protocols.errors import ProtocolError, Truncated

__all__ = ["Handler", "PeerHost"]

Handler: TypeAlias = Callable[[ByteStream], Awaitable[None]]
"""Serves one stream; the stream is closed when it returns, and reset when it raises."""

_DIAL_TIMEOUT_S: Final = 4.0
_CLOSE_TIMEOUT_S: Final = 2.0


class PeerHost:
    """Listens, dials, keeps links alive, and opens and serves streams.

    Args:
        key_pair: the node's identity.
        interfaces: those that it uses; replaced by `use_interfaces` when they change.
        port: to listen on, at every address; 0 for any.
        secret: that peers must share to connect; None lets anyone.
        fast: whether connections are carried by `node.transport` or by py-libp2p's own muxer.
    """

    def __init__(
        self,
        key_pair: KeyPair,
        interfaces: Sequence[Interface],
        *,
        port: int = 0,
        secret: bytes | None = None,
        fast: bool = True,
    ) -> None:
        self.warden = Warden(self._drop)
        self.libp2p = new_fast_host(
            key_pair,
            fast=fast,
            connection_config=connection_config(),
            secret=secret,
            conduct=self.warden,
        )
        self.peer_id: str = self.libp2p.get_id().to_base58()
        self.interfaces = tuple(interfaces)
        self._port = port
        network = self.libp2p.get_network()
        if not isinstance(network, Swarm):
            raise TypeError(f"a host over a {type(network).__name__}, not over a Swarm")
        self._swarm = network
        self._swarm.retry_config = RetryConfig(max_retries=0)
        self._links = LinkTable()
        self._listening: Listening | None = None
        self._half_open = HalfOpen()
        self._nursery: trio.Nursery | None = None
        self.set_handler(heartbeat.PROTOCOL_ID, heartbeat.answer)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Listen, and serve peers while open.

        Raises:
            PortInUse: the port that was asked for is taken.
            NoUsableInterface: no address could be listened on.
        """
        if self._port:
            await check_port_free(self._port, self.interfaces)
        forward_log()
        self._swarm.register_notifee(ConnectionObserver(self._connected, self._disconnected))
        async with self.libp2p.run(listen_addrs=[]), trio.open_nursery() as nursery:
            self._nursery = nursery
            self._listening = Listening(nursery, self._accept, self._port)
            self._swarm.listeners["baton"] = AnnouncedAddresses(lambda: self.addresses)
            await self._swarm.auto_connector.stop()
            try:
                await self.use_interfaces(self.interfaces)
                if not self.addresses:
                    raise NoUsableInterface(
                        "no address of this machine could be listened on",
                        "see the interfaces that `baton doctor` lists",
                    )
                yield
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs that this node listens on, those of the best interfaces first."""
        return self._listening.addresses if self._listening is not None else ()

    @property
    def links(self) -> tuple[Link, ...]:
        """Every open link, the best of each peer first."""
        return self._links.all

    def best_link(self, peer_id: str) -> Link | None:
        """Return the link to a peer that its next stream takes; None when there is none."""
        return next(iter(self._links.to(peer_id)), None)

    def best_route(self, peer_id: str) -> Route | None:
        """Return the route of the best link to a peer; None when there is no link."""
        link = self.best_link(peer_id)
        return link.route if link is not None else None

    def on_link(
        self,
        *,
        up: LinkListener | None = None,
        down: LinkListener | None = None,
        beat: LinkListener | None = None,
    ) -> None:
        """Have functions called when a link comes, goes, and answers a heartbeat."""
        self._links.listen(up, down, beat)

    async def use_interfaces(self, interfaces: Sequence[Interface]) -> bool:
        """Take up a changed set of interfaces: listen on their addresses, and on no others.

        Returns:
            Whether all addresses could be bound. To be called again if not: some are there before
            they can be.
        """
        self.interfaces = tuple(interfaces)
        return self._listening is not None and await self._listening.follow(interfaces)

    def set_handler(self, protocol: str, handler: Handler) -> None:
        """Serve streams of `protocol`. What the handler raises ends its stream and no more."""

        async def serve(stream: ByteStream) -> None:
            try:
                await handler(stream)
            except ProtocolError as error:
                # A stream that ends early is what a peer leaves behind that ends itself.
                offence = Offence.IDLE if isinstance(error, Truncated) else Offence.MALFORMED
                self.warden.report(stream.peer_id, offence, f"{protocol}: {error}")
                await stream.reset()

        self.libp2p.set_stream_handler(TProtocol(protocol), byte_stream_handler(serve))

    async def open_stream(self, peer_id: str, protocol: str) -> ByteStream:
        """Open a stream on the best link to a peer, or on the next best if that fails.

        The caller closes or resets it: streams left open end up blocking new ones.

        Raises:
            PeerUnreachable: there is no link, or none of them took the stream.
        """
        reason = "there is no connection to it"
        for link in self._links.to(peer_id):
            try:
                return await negotiate(link.connection, protocol)
            except PeerUnreachable as error:
                reason = error.problem
        raise PeerUnreachable(f"cannot open {protocol} to {peer_id}: {reason}")

    async def dial(self, peer_id: str, route: Route) -> bool:
        """Connect to a peer over one route; return whether that worked, within seconds.

        A peer that is banned, or has another secret, is not dialled until its time is over.
        """
        if self.warden.avoids(peer_id):
            return False
        try:
            with trio.fail_after(_DIAL_TIMEOUT_S):
                stream = await self._open_socket(route)
                await upgrade_outbound(self._swarm, stream, ID.from_base58(peer_id))
        except (OSError, PeerUnreachable, trio.TooSlowError) as error:
            logger.debug("dialling {} at {} over {!r} failed: {!r}", peer_id, *route.pair, error)
            if caused_by(error, SecretDiffers):
                self.warden.other_secret(peer_id, route.address)
            return False
        return True

    async def _open_socket(self, route: Route) -> trio.SocketStream:
        ip, port = parse_address(route.address)
        scope = route.interface if is_scoped(ip) else ""
        here = any(ip in interface.ips for interface in self.interfaces)
        if not route.interface or here:
            # What goes to this very machine goes over loopback, whatever the address.
            return await open_stream(ip, port, scope=scope)
        over = next((each for each in self.interfaces if each.name == route.interface), None)
        source = over.source_towards(ip) if over is not None else ""
        return await open_stream(ip, port, scope=scope, interface=route.interface, source=source)

    async def _accept(self, stream: trio.SocketStream) -> None:
        ends = endpoints_of(stream)
        address = ends.remote.ip if ends is not None else ""
        with self._half_open.entered(address):
            try:
                await upgrade_inbound(self._swarm, stream)
            except PeerUnreachable as error:
                logger.debug("a connection from {} came to nothing: {}", address, error)

    async def disconnect(self, peer_id: str) -> None:
        """Close every link to a peer."""
        for link in self._links.to(peer_id):
            await self._close(link)

    def _drop(self, peer_id: str) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self.disconnect, peer_id)

    def _connected(self, connection: SwarmConn) -> None:
        if self._nursery is None:
            return
        peer_id = connection.muxed_conn.peer_id.to_base58()
        route = self._route_of(connection)
        outbound = connection.direction is Direction.OUTBOUND
        link = Link(peer_id, route, connection, outbound)
        logger.info(
            "connected to {} over {} ({}) at {}, {}",
            peer_id,
            route.interface or "the default route",
            route.klass,
            route.address,
            "which we dialled" if outbound else "which it dialled",
        )
        self._nursery.start_soon(self._keep_alive, link)
        self._links.add(link)

    def _disconnected(self, connection: SwarmConn) -> None:
        link = self._links.remove(connection)
        if link is not None:
            logger.info("the connection to {} at {} is closed", link.peer_id, link.route.address)

    def _route_of(self, connection: SwarmConn) -> Route:
        remote = remote_endpoint(connection)
        if remote is None:
            return Route("", "other", "")
        address = tcp_address(*remote)
        candidates = interfaces_towards(remote[0], self.interfaces)
        ends = endpoints(connection)
        if ends is not None:
            local = ends.local
            at_it = [
                each
                for each in candidates
                if local.scope == each.name or (not local.scope and local.ip in each.ips)
            ]
            candidates = (*at_it, *candidates)
        if not candidates:
            return Route(address, "other", "")
        return route_over(address, candidates[0])

    async def _keep_alive(self, link: Link) -> None:
        try:
            stream = await negotiate(link.connection, heartbeat.PROTOCOL_ID)
            try:
                await heartbeat.beat(stream, partial(self._links.beat, link))
            finally:
                await stream.reset()
        except (heartbeat.HeartbeatLost, TransportError, PeerUnreachable) as error:
            if link in self._links:
                logger.warning("lost {} at {}: {}", link.peer_id, link.route.address, error)
            await self._close(link)

    async def _close(self, link: Link) -> None:
        # The goodbye may wait for a peer that is gone. Whatever becomes of it, the link has ended.
        with trio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await link.connection.close()
        self._swarm.remove_conn(link.connection)
        self._disconnected(link.connection)
