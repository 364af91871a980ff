"""Whole hosts: every pairing with stock, handlers that fail, peers that are killed."""

import subprocess
import sys

import pytest
import trio
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.ping import PingService
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from node.transport.errors import ConnectionLost, StreamReset
from node.transport.guard import byte_stream_handler
from node.transport.host import new_fast_host
from node.transport.streams import ByteStream
from node.transport.yamux.connection import YamuxConnection
from tests.support.transport import LOOPBACK, host_pair

ECHO = TProtocol("/test/echo/1")
FAIL = TProtocol("/test/fail/1")
SIZE = 3_000_000

PEER = """
import sys, trio
from libp2p.crypto.ed25519 import create_new_key_pair
from node.transport.host import new_fast_host
from tests.node.transport.test_hosts import add_handlers
from tests.support.transport import LOOPBACK

async def main():
    host = new_fast_host(create_new_key_pair())
    add_handlers(host)
    async with host.run([LOOPBACK]):
        print(host.get_addrs()[0], flush=True)
        await trio.sleep(60)

trio.run(main)
"""


async def echo(stream: ByteStream) -> None:
    size = int.from_bytes(await stream.read_exactly(4), "big")
    await stream.send(await stream.read_exactly(size))


async def fail(stream: ByteStream) -> None:
    await stream.read_exactly(1)
    raise RuntimeError("a handler's mistake")


async def fail_bare(stream: INetStream) -> None:
    await stream.read(1)
    raise RuntimeError("another's mistake")


def add_handlers(host: IHost) -> None:
    host.set_stream_handler(ECHO, byte_stream_handler(echo))
    host.set_stream_handler(FAIL, byte_stream_handler(fail))
    host.set_stream_handler(TProtocol("/test/fail-bare/1"), fail_bare)


async def open_stream(host: IHost, peer: ID, protocol: TProtocol = ECHO) -> ByteStream:
    return ByteStream(await host.new_stream(peer, [protocol]))


async def check_echo(host: IHost, peer: ID, size: int = SIZE) -> None:
    stream = await open_stream(host, peer)
    data = bytes(i % 251 for i in range(size))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send, size.to_bytes(4, "big"), data)
        assert await stream.read_exactly(size) == data
    await stream.close()


@pytest.mark.parametrize("fast", [(True, True), (True, False), (False, True)])
async def test_hosts_echo_in_both_directions_and_answer_pings(fast):
    async with host_pair(fast, add_handlers) as (a, b):
        add_handlers(a)
        assert [
            isinstance(connection.muxed_conn, YamuxConnection)
            for host in (a, b)
            for connections in host.get_network().connections.values()
            for connection in connections
        ] == list(fast)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_echo, a, b.get_id())
            nursery.start_soon(check_echo, a, b.get_id(), 1)
            nursery.start_soon(check_echo, b, a.get_id())
        assert await PingService(a).ping(b.get_id())


@pytest.mark.parametrize("protocol", [FAIL, "/test/fail-bare/1"])
async def test_a_handler_that_fails_costs_its_stream_and_no_more(protocol):
    async with host_pair(set_up=add_handlers) as (a, b):
        stream = await open_stream(a, b.get_id(), TProtocol(protocol))
        await stream.send(b"x")
        with pytest.raises(StreamReset):
            await stream.read_exactly(1)
        await check_echo(a, b.get_id())


async def test_a_peer_that_negotiates_nonsense_costs_its_stream_and_no_more():
    async with host_pair(set_up=add_handlers) as (a, b):
        (connection,) = a.get_network().get_connections(b.get_id())
        stream = await connection.new_stream()
        await stream.write(b"\x14/multistream/1.0.0\n\x05\xff\xff\xff\xff\n")
        await check_echo(a, b.get_id())


async def test_a_killed_peer_is_noticed():
    process = await trio.to_thread.run_sync(
        lambda: subprocess.Popen([sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True)
    )
    try:
        assert process.stdout is not None
        address = Multiaddr((await trio.to_thread.run_sync(process.stdout.readline)).strip())
        peer = ID.from_string(address.value_for_protocol("p2p") or "")
        host = new_fast_host(create_new_key_pair())
        async with host.run([LOOPBACK]):
            await host.connect(PeerInfo(peer, [address]))
            stream = await open_stream(host, peer)
            process.kill()
            with trio.fail_after(5), pytest.raises(ConnectionLost):
                await stream.read_exactly(1)
            await stream.close()
    finally:
        process.kill()
        process.wait()


async def test_a_host_without_the_secret_stays_out():
    member, outsider = (
        new_fast_host(create_new_key_pair(), secret=secret) for secret in (b"secret", None)
    )
    async with member.run([LOOPBACK]), outsider.run([LOOPBACK]):
        with pytest.raises(SwarmException):
            await outsider.connect(PeerInfo(member.get_id(), [member.get_addrs()[0]]))
        assert not member.get_connected_peers()
