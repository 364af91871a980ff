"""Pairs of libp2p sessions, connections, streams and hosts over loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from libp2p.abc import IHost, IMuxedConn, ISecureConn
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from node.transport.host import new_fast_host
from node.transport.noise import NoiseSession, NoiseTransport
from node.transport.noise_suites import CHACHA_POLY, Suite
from node.transport.streams import ByteStream
from node.transport.yamux.connection import YamuxConnection
from node.transport.yamux.settings import YamuxSettings

LOOPBACK = Multiaddr("/ip4/127.0.0.1/tcp/0")


async def tcp_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a TCP connection: the client's, the server's."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        client = await trio.open_tcp_stream(*listener.socket.getsockname())
        return client, await listener.accept()


async def session_pair(
    fast: tuple[bool, bool] = (True, True),
    secrets: tuple[bytes | None, bytes | None] = (None, None),
    suite: Suite = CHACHA_POLY,
) -> tuple[ISecureConn, ISecureConn]:
    """Return both ends of a noise session: the initiator's, the responder's."""
    keys = create_new_key_pair(), create_new_key_pair()
    transports = [
        NoiseTransport(key, fast=is_fast, secret=secret, suite=suite)
        for key, is_fast, secret in zip(keys, fast, secrets, strict=True)
    ]
    client, server = await tcp_pair()
    sessions: dict[int, ISecureConn] = {}

    async def respond() -> None:
        sessions[1] = await transports[1].secure_inbound(
            RawConnection(TrioTCPStream(server), False)
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(respond)
        raw = RawConnection(TrioTCPStream(client), True)
        sessions[0] = await transports[0].secure_outbound(raw, ID.from_pubkey(keys[1].public_key))
    return sessions[0], sessions[1]


def fast_session(session: ISecureConn) -> NoiseSession:
    """Return `session`, which has to be one of ours."""
    assert isinstance(session, NoiseSession)
    return session


@asynccontextmanager
async def connection_pair(
    fast: tuple[bool, bool] = (True, True), settings: YamuxSettings | None = None
) -> AsyncIterator[tuple[IMuxedConn, IMuxedConn]]:
    """Run both ends of a yamux connection: the initiator's, the responder's."""
    connections: list[IMuxedConn] = []
    for session in await session_pair(fast):
        peer = session.get_remote_peer()
        if isinstance(session, NoiseSession):
            connections.append(YamuxConnection(session, peer, settings))
        else:
            connections.append(Yamux(session, peer))
    async with trio.open_nursery() as nursery:
        for connection in connections:
            nursery.start_soon(connection.start)
            await connection.event_started.wait()
        yield connections[0], connections[1]
        for connection in connections:
            await connection.close()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def fast_pair(
    settings: YamuxSettings | None = None,
) -> AsyncIterator[tuple[YamuxConnection, YamuxConnection]]:
    """As `connection_pair`, both of ours."""
    async with connection_pair((True, True), settings) as (a, b):
        assert isinstance(a, YamuxConnection)
        assert isinstance(b, YamuxConnection)
        yield a, b


@asynccontextmanager
async def stream_pair(
    fast: tuple[bool, bool] = (True, True), settings: YamuxSettings | None = None
) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """Run a connection with one stream: the opener's end, the acceptor's."""
    async with connection_pair(fast, settings) as (a, b):
        yield await open_streams(a, b)


async def open_streams(a: IMuxedConn, b: IMuxedConn) -> tuple[ByteStream, ByteStream]:
    """Open a stream from `a` to `b` and return both ends."""
    opened = await a.open_stream()
    return as_byte_stream(opened), as_byte_stream(await b.accept_stream())


async def until_closed(connection: IMuxedConn) -> None:
    """Wait for the end of a connection, which neither yamux offers an event for."""
    with trio.fail_after(10):
        while not connection.is_closed:  # noqa: ASYNC110
            await trio.sleep(0.01)


def as_byte_stream(muxed) -> ByteStream:
    """Return a `ByteStream` over a muxed stream that no swarm knows of."""
    return ByteStream(NetStream(muxed, None, None))


@asynccontextmanager
async def host_pair(
    fast: tuple[bool, bool] = (True, True), set_up: Callable[[IHost], None] = lambda _: None
) -> AsyncIterator[tuple[IHost, IHost]]:
    """Run two hosts, the first connected to the second; `set_up` is given the second."""
    a, b = (new_fast_host(create_new_key_pair(), fast=is_fast) for is_fast in fast)
    set_up(b)
    async with a.run([LOOPBACK]), b.run([LOOPBACK]):
        await a.connect(PeerInfo(b.get_id(), [b.get_addrs()[0]]))
        yield a, b
