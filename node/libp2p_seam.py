"""Where py-libp2p 0.8 is touched, and what is known to go wrong there is held off.

The auto-connector dials whomever it hears of up to the middle between its watermarks, whatever the
lower one is: the host stops it. Its TCP transport can neither dial nor listen at a link-local IPv6
address, chooses no interface, and its listening sockets share their port with any other process
that listens likewise: sockets are opened by us, and only upgraded by the swarm. `host.new_stream`
picks the connection, and dials by itself: streams are negotiated here, on the connection that the
caller chose.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream, INetwork, INotifee
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import IOException
from libp2p.network.config import ConnectionConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.stream_muxer.exceptions import MuxedStreamError
from loguru import logger
from multiaddr import Multiaddr

from node.errors import PeerUnreachable
from node.transport.bulk import BulkConnection, negotiate_bulk
from node.transport.conduct import Conduct
from node.transport.negotiation import NEGOTIATION_S, LimitedCommunicator, LimitedSecurity
from node.transport.noise import NoiseSession
from node.transport.streams import ByteStream
from node.transport.tcp import Endpoints, TcpStream
from node.transport.yamux.connection import YamuxConnection

__all__ = [
    "ConnectionObserver",
    "StreamOpener",
    "caused_by",
    "connection_config",
    "endpoints",
    "forward_log",
    "negotiate",
    "prove_key",
    "remote_endpoint",
    "upgrade_bulk",
    "upgrade_inbound",
    "upgrade_outbound",
]

_HANDSHAKE_S: Final = 5.0


def connection_config() -> ConnectionConfig:
    """Return libp2p's settings for a host that is told when to connect, and to whom."""
    return ConnectionConfig(
        min_connections=0,
        low_watermark=0,
        max_connections_per_peer=6,
        inbound_upgrade_timeout=_HANDSHAKE_S,
        outbound_upgrade_timeout=_HANDSHAKE_S,
    )


class _Forwarder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger.debug("{}: {}", record.name, record.getMessage())


def forward_log() -> None:
    """Send what libp2p warns of to our log, as debug: most of it is a dial that failed."""
    libp2p_logger = logging.getLogger("libp2p")
    libp2p_logger.propagate = False
    if not any(isinstance(each, _Forwarder) for each in libp2p_logger.handlers):
        libp2p_logger.addHandler(_Forwarder(logging.WARNING))


class StreamOpener(Protocol):
    """A connection, of a swarm's or not."""

    async def new_stream(self) -> INetStream:
        """Open a stream whose protocol is still to be negotiated."""
        ...


async def negotiate(
    connection: StreamOpener, protocol: str, timeout_s: float = NEGOTIATION_S
) -> ByteStream:
    """Open a stream of `protocol` on a connection.

    Raises:
        PeerUnreachable: the connection failed, or the peer does not speak the protocol.
    """
    net_stream: INetStream | None = None
    try:
        with trio.fail_after(timeout_s):
            net_stream = await connection.new_stream()
            chosen = await MultiselectClient().select_one_of(
                [TProtocol(protocol)], LimitedCommunicator(net_stream), math.ceil(timeout_s)
            )
        net_stream.set_protocol(chosen)
        return ByteStream(net_stream)
    except BaseException as error:
        if net_stream is not None:
            with trio.CancelScope(shield=True):
                await net_stream.reset()
        known = (MultiselectClientError, MuxedStreamError, IOException, trio.TooSlowError)
        if isinstance(error, known):
            raise PeerUnreachable(str(error) or f"no answer within {timeout_s:g} s") from error
        raise


def endpoints(muxed: IMuxedConn) -> Endpoints | None:
    """Return both ends of a connection, where its sessions are ours and tell them."""
    session = muxed.secured_conn if isinstance(muxed, YamuxConnection) else None
    return session.endpoints if isinstance(session, NoiseSession) else None


def remote_endpoint(muxed: IMuxedConn) -> tuple[str, int] | None:
    """Return IP address, without a scope, and port of a connection's other end, if known."""
    # Every muxer has it, though the interface does not say so.
    return muxed.get_remote_address()  # pyright: ignore[reportAttributeAccessIssue]


async def upgrade_outbound(swarm: Swarm, stream: trio.SocketStream, peer_id: ID) -> None:
    """Make a connection of the swarm's of a TCP stream to a peer. On failure it is closed.

    Raises:
        PeerUnreachable: the peer is another one, has another secret, or does not speak libp2p.
    """
    try:
        await swarm.upgrade_outbound_raw_conn(RawConnection(TcpStream(stream), True), peer_id)
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        # The handshake raises whatever it meets in what the other end says.
        if isinstance(error, Exception):
            raise PeerUnreachable(f"the handshake failed: {error!r}") from error
        raise


async def prove_key(swarm: Swarm, stream: trio.SocketStream, peer_id: ID) -> None:
    """Have the other end of a TCP stream prove that it holds a peer's key, and no more.

    Raises:
        PeerUnreachable: it does not.
    """
    raw = RawConnection(TcpStream(stream), True)
    try:
        await swarm.upgrader.upgrade_security(raw, True, peer_id)
    except Exception as error:
        raise PeerUnreachable(f"the handshake failed: {error!r}") from error


async def upgrade_bulk(
    swarm: Swarm, stream: trio.SocketStream, peer_id: ID, conduct: Conduct
) -> BulkConnection:
    """Make a connection for bulk, not the swarm's, of a TCP stream to a peer.

    On failure the stream is closed.

    Raises:
        PeerUnreachable: as in `upgrade_outbound`, or the peer takes no such connections.
    """
    raw = RawConnection(TcpStream(stream), True)
    connection: BulkConnection | None = None
    try:
        security = swarm.upgrader.security_multistream
        if isinstance(security, LimitedSecurity):
            secured = await security.secure_bulk(raw, peer_id)
            connection = await negotiate_bulk(secured, peer_id, conduct=conduct)
    except Exception as error:
        raise PeerUnreachable(f"no connection for bulk: {error!r}") from error
    finally:
        if connection is None:
            await trio.aclose_forcefully(stream)
    if connection is None:
        raise PeerUnreachable("connections for bulk need noise sessions of ours")
    return connection


async def upgrade_inbound(swarm: Swarm, stream: trio.SocketStream) -> BulkConnection | None:
    """Make a connection of a TCP stream that was accepted. On failure it is closed.

    Returns:
        A connection for bulk, if that is what the peer wants; else it is the swarm's.

    Raises:
        PeerUnreachable: as in `upgrade_outbound`.
    """
    upgrader = swarm.upgrader
    try:
        with trio.fail_after(_HANDSHAKE_S):
            secured = await upgrader.upgrade_security(
                RawConnection(TcpStream(stream), False), False
            )
            muxed = await upgrader.upgrade_connection(secured, secured.get_remote_peer())
        if isinstance(muxed, BulkConnection):
            return muxed
        await swarm.add_conn(muxed, direction="inbound")
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, Exception):
            raise PeerUnreachable(f"the handshake failed: {error!r}") from error
        raise
    return None


def caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether an error is of a kind, or was raised from one that is."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error is not None


class ConnectionObserver(INotifee):
    """Calls functions when connections come and go. They must not block."""

    def __init__(
        self, connected: Callable[[SwarmConn], None], disconnected: Callable[[SwarmConn], None]
    ) -> None:
        self._connected = connected
        self._disconnected = disconnected

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        if isinstance(conn, SwarmConn):
            self._connected(conn)

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        if isinstance(conn, SwarmConn):
            self._disconnected(conn)

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        return None

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        return None

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        return None

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        return None
