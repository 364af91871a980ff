"""The libp2p host as the rest of the node uses it: links to peers, and streams over them.

Routes are dialled one by one, since `dial_peer` tries one address per transport and then blocks the
peer for a minute. A silent loss of a link goes unnoticed below, so each has a heartbeat of ours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TProtocol
from libp2p.network.config import RetryConfig
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from loguru import logger

from node import heartbeat
from node.absent_peers import forget_absent_peers
from node.bulk import BulkConnections
from node.errors import NoUsableInterface, PeerUnreachable
from node.interfaces import Interface, is_scoped
from node.libp2p_seam import (
    ConnectionObserver,
    caused_by,
    connection_config,
    forward_log,
    negotiate,
    prove_key,
    upgrade_bulk,
    upgrade_inbound,
    upgrade_outbound,
)
from node.link_keeper import LinkKeeper
from node.links import Link, LinkListener
from node.listening import AnnouncedAddresses, Listening, check_port_free
from node.routes import Route, parse_address
from node.transport.bulk import BulkConnection
from node.transport.conduct import Offence
from node.transport.guard import byte_stream_handler
from node.transport.half_open import HalfOpen
from node.transport.host import new_fast_host
from node.transport.negotiation import NEGOTIATION_S
from node.transport.noise import SecretDiffers
from node.transport.streams import ByteStream
from node.transport.tcp import endpoints_of, open_stream
from node.warden import Warden
from protocols.errors import ProtocolError, Truncated
from protocols.gossip import InterfaceRecord

__all__ = ["Handler", "PeerHost"]

Handler: TypeAlias = Callable[[ByteStream], Awaitable[None]]
"""Serves one stream; the stream is closed when it returns, and reset when it raises."""

_DIAL_TIMEOUT_S: Final = 4.0
_BULK_DIAL_TIMEOUT_S: Final = 2.0
"""Shorter than for a link: a request waits, and may go over the link as well."""
_IMPATIENCE_S: Final = 1.0
"""How long a link may take to negotiate a stream when there are others."""


class PeerHost:
    """Listens, dials, keeps links alive, and opens and serves streams.

    Args:
        key_pair: the node's identity.
        interfaces: those that it uses; replaced by `use_interfaces` when they change.
        port: to listen on, at every address; 0 for any.
        named: whether the user has named the interfaces.
        secret: that peers must share to connect; None lets anyone.
        fast: whether connections are carried by `node.transport` or by py-libp2p's own muxer.

    Attributes:
        bulk: the connections beside the links, for bulk data alone.
    """

    def __init__(
        self,
        key_pair: KeyPair,
        interfaces: Sequence[Interface],
        *,
        port: int = 0,
        named: bool = False,
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
        self._keeper = LinkKeeper(network, self.peer_id, interfaces, named=named)
        self._listening: Listening | None = None
        self._half_open = HalfOpen()
        self.bulk = BulkConnections(self._dial_bulk, self.warden)
        self._keeper.table.listen(None, self._link_down, None)
        self._probes: dict[tuple[str, int], bool] = {}
        """Ends of connections that look for copies of this node; true if they came back here."""
        self._nursery: trio.Nursery | None = None
        self.set_handler(heartbeat.PROTOCOL_ID, self._keeper.answer_heartbeats)

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
        self._swarm.register_notifee(
            ConnectionObserver(self._keeper.connected, self._keeper.disconnected)
        )
        async with self.libp2p.run(listen_addrs=[]), trio.open_nursery() as nursery:
            self._nursery = nursery
            self._keeper.start(nursery)
            self.bulk.start(nursery)
            self._listening = Listening(nursery, self._accept, self._port)
            self._swarm.listeners["baton"] = AnnouncedAddresses(lambda: self.addresses)
            await self._swarm.auto_connector.stop()
            nursery.start_soon(forget_absent_peers, self._swarm)
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
                self._keeper.stop()
                self.bulk.stop()
                nursery.cancel_scope.cancel()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs that this node listens on, those of the best interfaces first."""
        return self._listening.addresses if self._listening is not None else ()

    @property
    def links(self) -> tuple[Link, ...]:
        """Every open link, the one in use first of each peer."""
        return self._keeper.table.all

    def best_link(self, peer_id: str) -> Link | None:
        """Return the link to a peer that its next stream takes; None when there is none."""
        return next(iter(self._keeper.table.to(peer_id)), None)

    def open_routes(self, peer_id: str) -> tuple[Route, ...]:
        """Return the routes of the links to a peer, the one in use first."""
        return tuple(link.route for link in self._keeper.table.to(peer_id))

    def rate(self, link: Link) -> float | None:
        """Return the newest rate that either end has measured on a link, in bytes per second."""
        return self._keeper.table.rates.bytes_per_s(link.key)

    def note_rate(self, link: Link, bytes_per_s: float) -> None:
        """Take note of what a transfer over a link has reached; it is kept when the link ends."""
        self._keeper.table.note_rate(link, bytes_per_s)

    def on_link(
        self,
        *,
        up: LinkListener | None = None,
        down: LinkListener | None = None,
        beat: LinkListener | None = None,
    ) -> None:
        """Have functions called when a link comes, goes, and answers a heartbeat."""
        self._keeper.table.listen(up, down, beat)

    async def use_interfaces(self, interfaces: Sequence[Interface]) -> bool:
        """Take up a changed set of interfaces: listen on their addresses, and on no others.

        Links whose address here has gone are ended: nothing would come of waiting for them.

        Returns:
            Whether all addresses could be bound. To be called again if not: some are there before
            they can be.
        """
        self.interfaces = tuple(interfaces)
        self._keeper.use_interfaces(interfaces)
        return self._listening is not None and await self._listening.follow(interfaces)

    def set_handler(self, protocol: str, handler: Handler, *, bulk: bool = False) -> None:
        """Serve streams of `protocol`. What the handler raises ends its stream and no more.

        Args:
            protocol: of the streams.
            handler: serves one.
            bulk: whether peers may open them on bulk connections too. No others may be there.
        """

        async def serve(stream: ByteStream) -> None:
            try:
                await handler(stream)
            except ProtocolError as error:
                # A stream that ends early is what a peer leaves behind that ends itself.
                offence = Offence.IDLE if isinstance(error, Truncated) else Offence.MALFORMED
                self.warden.report(stream.peer_id, offence, f"{protocol}: {error}")
                await stream.reset()

        self.libp2p.set_stream_handler(TProtocol(protocol), byte_stream_handler(serve))
        if bulk:
            self.bulk.set_handler(protocol, byte_stream_handler(serve))

    def know_interfaces(self, peer_id: str, interfaces: tuple[InterfaceRecord, ...]) -> None:
        """Take note of a peer's interfaces. Links to such that it has no more are ended."""
        self._keeper.know_interfaces(peer_id, interfaces)

    def forget_interfaces(self, peer_id: str) -> None:
        """Forget those of a peer that is gone."""
        self._keeper.table.forget(peer_id)

    async def open_stream(self, peer_id: str, protocol: str) -> ByteStream:
        """Open a stream on the link to a peer that is in use, or on the next best if that fails.

        The caller closes or resets it: streams left open end up blocking new ones.

        Raises:
            PeerUnreachable: there is no link, or none of them took the stream.
        """
        return (await self.open_on_link(peer_id, protocol))[1]

    async def open_on_link(self, peer_id: str, protocol: str) -> tuple[Link, ByteStream]:
        """As `open_stream`, and return the link too that the stream is on."""
        links = self._keeper.table.to(peer_id)
        # A link that hangs is left for the next soon; if all do, the best gets all the time it may.
        attempts = [(link, _IMPATIENCE_S) for link in links] if len(links) > 1 else []
        reason = "there is no connection to it"
        for link, timeout_s in (*attempts, *((link, NEGOTIATION_S) for link in links[:1])):
            if link not in self._keeper.table:
                continue
            try:
                return link, await negotiate(link.connection, protocol, timeout_s)
            except PeerUnreachable as error:
                reason = error.problem
        raise PeerUnreachable(f"cannot open {protocol} to {peer_id}: {reason}")

    def interface_of(self, stream: ByteStream) -> str:
        """Return the interface here that a stream leaves by; empty where that is not known."""
        link = self._keeper.table.on(stream.connection)
        route = link.route if link is not None else self.bulk.route_of(stream.connection)
        return route.interface if route is not None else ""

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

    async def finds_copy(self, route: Route) -> bool:
        """Whether another process that holds this node's key answers at the end of a route.

        It is asked to prove it in a handshake: that something listens there says nothing.
        """
        probe: tuple[str, int] | None = None
        try:
            with trio.fail_after(_DIAL_TIMEOUT_S):
                async with await self._open_socket(route) as stream:
                    ends = endpoints_of(stream)
                    if ends is None:
                        return False
                    probe = ends.local.ip, ends.local.port
                    self._probes[probe] = False
                    await prove_key(self._swarm, stream, self.libp2p.get_id())
                    # If it was this very node, its own accepting has taken note.
                    return not self._probes[probe]
        except (OSError, PeerUnreachable, trio.TooSlowError) as error:
            logger.debug("no copy of this node at {}: {!r}", route.address, error)
            return False
        finally:
            if probe is not None:
                del self._probes[probe]

    async def _dial_bulk(self, peer_id: str, route: Route) -> BulkConnection:
        if self.warden.avoids(peer_id):
            raise PeerUnreachable(f"{peer_id} is not dialled for now")
        try:
            with trio.fail_after(_BULK_DIAL_TIMEOUT_S):
                stream = await self._open_socket(route)
                return await upgrade_bulk(self._swarm, stream, ID.from_base58(peer_id), self.warden)
        except (OSError, trio.TooSlowError) as error:
            raise PeerUnreachable(f"dialling {route.address} failed: {error!r}") from error

    def _link_down(self, link: Link) -> None:
        self.bulk.end(link.peer_id, self.open_routes(link.peer_id))

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
        if ends is not None and (ends.remote.ip, ends.remote.port) in self._probes:
            self._probes[ends.remote.ip, ends.remote.port] = True
        with self._half_open.entered(address):
            try:
                bulk = await upgrade_inbound(self._swarm, stream)
                if bulk is not None:
                    await self.bulk.take(bulk, self._keeper.route_of(bulk))
            except PeerUnreachable as error:
                logger.debug("a connection from {} came to nothing: {}", address, error)

    async def disconnect(self, peer_id: str) -> None:
        """Close every connection to a peer."""
        await self.bulk.disconnect(peer_id)
        for link in self._keeper.table.to(peer_id):
            await self._keeper.close(link)

    def _drop(self, peer_id: str) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self.disconnect, peer_id)
