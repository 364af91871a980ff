"""Hosts over loopback, in one process."""

from contextlib import asynccontextmanager
from ipaddress import ip_interface

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair

from node import heartbeat
from node.errors import PeerUnreachable, PortInUse
from node.host import PeerHost
from node.interfaces import Interface
from node.membership.gossip import Gossip
from node.routes import Route, parse_address
from node.transport.errors import TransportError
from protocols.gossip import Leave

LO = Interface("lo", "loopback", (ip_interface("127.0.0.1/8"),))
ECHO = "/test/echo/1"


async def until(condition, seconds=10):
    deadline = trio.current_time() + seconds
    while not condition():
        assert trio.current_time() < deadline, "the condition did not come about"
        await trio.sleep(0.01)


@asynccontextmanager
async def running(port=0, **options):
    host = PeerHost(create_new_key_pair(), [LO], port=port, **options)
    async with host.running():
        yield host


@asynccontextmanager
async def pair(**options):
    """Two hosts, the first of which has dialled the second."""
    async with running(**options) as a, running() as b:
        assert await a.dial(b.peer_id, Route(b.addresses[0], "loopback", "lo"))
        await until(lambda: a.best_link(b.peer_id) and b.best_link(a.peer_id))
        yield a, b


async def echo(stream):
    await stream.send(await stream.read_exactly(4))


async def ask(host, peer_id):
    stream = await host.open_stream(peer_id, ECHO)
    with trio.fail_after(10):
        await stream.send(b"ping")
        answer = bytes(await stream.read_exactly(4))
    await stream.close()
    return answer


@pytest.mark.parametrize("fast", [True, False])
async def test_stream_goes_both_ways_over_either_transport(fast):
    async with pair(fast=fast) as (a, b):
        b.set_handler(ECHO, echo)
        a.set_handler(ECHO, echo)
        assert await ask(a, b.peer_id) == b"ping"
        assert await ask(b, a.peer_id) == b"ping"


async def test_link_tells_how_it_goes():
    async with pair() as (a, b):
        ours, theirs = a.best_link(b.peer_id), b.best_link(a.peer_id)
        assert ours is not None
        assert theirs is not None
        assert (ours.outbound, theirs.outbound) == (True, False)
        assert ours.route == Route(b.addresses[0], "loopback", "lo")
        assert (theirs.route.klass, theirs.route.interface) == ("loopback", "lo")
        await until(lambda: ours.rtt_s is not None and ours.rtt_s > 0)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ExceptionGroup("two", [ValueError()])])
async def test_failing_handler_ends_its_stream_and_no_more(error):
    async def fail(stream):
        await stream.read_exactly(4)
        raise error

    async with pair() as (a, b):
        b.set_handler("/test/fail/1", fail)
        b.set_handler(ECHO, echo)
        stream = await a.open_stream(b.peer_id, "/test/fail/1")
        with trio.fail_after(10):
            await stream.send(b"ping")
            with pytest.raises(TransportError):
                await stream.read_exactly(1)
        await stream.reset()
        assert await ask(a, b.peer_id) == b"ping"


async def test_unknown_protocol_and_unknown_peer_are_told_apart():
    async with pair() as (a, b):
        with pytest.raises(PeerUnreachable, match="/test/nothing"):
            await a.open_stream(b.peer_id, "/test/nothing/1")
        with pytest.raises(PeerUnreachable, match="no connection"):
            await a.open_stream("12D3KooWnobody", ECHO)


@pytest.mark.parametrize("fast", [True, False])
async def test_more_streams_one_after_another_than_a_connection_keeps_open(fast):
    async with pair(fast=fast) as (a, b):
        b.set_handler(ECHO, echo)
        for _ in range(300):
            assert await ask(a, b.peer_id) == b"ping"


async def test_dial_of_a_dead_or_wrong_address_fails_and_does_not_block_the_peer():
    async with running() as a, running() as b, running() as c:
        assert not await a.dial(b.peer_id, Route("/ip4/127.0.0.1/tcp/1", "loopback", "lo"))
        assert not await a.dial(b.peer_id, Route(c.addresses[0], "loopback", "lo"))
        assert a.best_link(b.peer_id) is None
        assert await a.dial(b.peer_id, Route(b.addresses[0], "loopback", "lo"))


async def test_stranger_without_the_secret_is_not_let_in():
    async with running(secret=b"s" * 32) as a, running() as b, running(secret=b"s" * 32) as c:
        assert not await b.dial(a.peer_id, Route(a.addresses[0], "loopback", "lo"))
        assert not await a.dial(b.peer_id, Route(b.addresses[0], "loopback", "lo"))
        assert await c.dial(a.peer_id, Route(a.addresses[0], "loopback", "lo"))
        assert a.best_link(b.peer_id) is None


async def test_both_sides_dialling_at_once_is_tolerated():
    async with running() as a, running() as b:
        b.set_handler(ECHO, echo)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.dial, b.peer_id, Route(b.addresses[0], "loopback", "lo"))
            nursery.start_soon(b.dial, a.peer_id, Route(a.addresses[0], "loopback", "lo"))
        assert await ask(a, b.peer_id) == b"ping"


async def test_disconnect_is_noticed_by_both():
    async with pair() as (a, b):
        await a.disconnect(b.peer_id)
        await until(lambda: not a.links and not b.links)


async def test_peer_that_stops_answering_is_dropped(monkeypatch):
    monkeypatch.setattr(heartbeat, "TIMEOUT_S", 0.3)

    async def swallow(stream):
        while True:
            await stream.read_exactly(8)

    async with running() as a, running() as b:
        b.set_handler(heartbeat.PROTOCOL_ID, swallow)
        assert await a.dial(b.peer_id, Route(b.addresses[0], "loopback", "lo"))
        await until(lambda: not a.links)


async def test_taken_port_is_refused():
    async with running() as a:
        _, port = parse_address(a.addresses[0])
        with pytest.raises(PortInUse, match="--port"):
            async with running(port):
                pass


async def test_junk_on_the_port_disturbs_nobody():
    async with pair() as (a, b):
        b.set_handler(ECHO, echo)
        ip, port = parse_address(b.addresses[0])
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"\x13/multistream/1.0.0\nxx", b""):
            stream = await trio.open_tcp_stream(ip, port)
            await stream.send_all(junk)
            await stream.aclose()
        assert await ask(a, b.peer_id) == b"ping"


@asynccontextmanager
async def gossiping(host, heard):
    """Gossip on a host while open; what is heard goes to the list `heard`."""

    async def collect(messages):
        async for message in messages:
            heard.append(message)

    gossip = Gossip(host.libp2p, "test", host.warden)
    async with gossip.running() as messages, trio.open_nursery() as nursery:
        nursery.start_soon(collect, messages)
        yield gossip
        nursery.cancel_scope.cancel()


async def test_gossip_is_heard():
    heard = []
    async with running() as a, running() as b, gossiping(a, []) as from_a, gossiping(b, heard):
        assert await a.dial(b.peer_id, Route(b.addresses[0], "loopback", "lo"))
        with trio.fail_after(20):
            while Leave(a.peer_id, 7) not in heard:
                await from_a.publish(Leave(a.peer_id, 7))
                await trio.sleep(0.1)
