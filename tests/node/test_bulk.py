"""Connections for bulk data, beside the links of two hosts over loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from libp2p.abc import IMuxedConn
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from node import bulk, heartbeat
from node.errors import PeerUnreachable
from node.host import PeerHost
from node.routes import Route
from node.transport import host as transport_host
from node.transport.bulk import BulkConnection
from node.transport.errors import ConnectionLost
from node.transport.noise_suites import AES_GCM, CHACHA_POLY, Suite
from node.transport.streams import ByteStream
from node.transport.yamux.connection import YamuxConnection
from tests.node.test_host import ECHO, ask, echo, pair, running, until
from tests.support.netns import network
from tests.support.nodes import ROOT

BULK = "/test/bulk/1"


async def repeat(stream: ByteStream) -> None:
    while True:
        await stream.send(await stream.read_exactly(4))


def route_to(host: PeerHost) -> Route:
    return Route(host.addresses[0], "loopback", "lo")


async def open_bulk(host: PeerHost, peer: PeerHost, protocol: str = BULK) -> ByteStream:
    stream = await host.bulk.open_stream(peer.peer_id, [route_to(peer)], protocol)
    with trio.fail_after(10):
        await stream.send(b"ping")
        assert await stream.read_exactly(4) == b"ping"
    return stream


@asynccontextmanager
async def bulk_pair(**options: bool) -> AsyncIterator[tuple[PeerHost, PeerHost]]:
    async with pair(**options) as (a, b):
        for host in (a, b):
            host.set_handler(BULK, repeat, bulk=True)
            host.set_handler(ECHO, echo)
        yield a, b


async def test_bulk_has_a_connection_of_its_own_that_is_no_link():
    async with bulk_pair() as (a, b):
        link = a.best_link(b.peer_id)
        assert link is not None
        stream = await open_bulk(a, b)
        assert isinstance(stream.connection, BulkConnection)
        assert stream.connection is not link.connection.muxed_conn
        assert a.interface_of(stream) == "lo"
        assert a.bulk.routes == ((b.peer_id, route_to(b)),)
        assert len(a.links) == len(b.links) == 1
        assert [each for each, _ in b.bulk.routes] == [a.peer_id]
        assert b.bulk.routes[0][1].interface == "lo"
        # In the other direction, too, and each is the one that its side has dialled.
        back = await open_bulk(b, a)
        assert back.connection is not stream.connection
        assert len(a.bulk.routes) == len(b.bulk.routes) == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "suite"),
    [(True, True, AES_GCM), (True, False, CHACHA_POLY), (False, True, CHACHA_POLY)],
)
async def test_bulk_is_sealed_with_aes_where_that_is_cheaper_for_both(
    monkeypatch: pytest.MonkeyPatch, ours: bool, theirs: bool, suite: Suite
):
    answers = iter((ours, theirs))
    monkeypatch.setattr(transport_host, "aes_pays", lambda: next(answers))
    async with bulk_pair() as (a, b):
        stream = await open_bulk(a, b)
        assert suite_of(stream.connection) == suite
        link = a.best_link(b.peer_id)
        assert link is not None
        assert suite_of(link.connection.muxed_conn) == CHACHA_POLY


def suite_of(connection: IMuxedConn) -> Suite:
    assert isinstance(connection, YamuxConnection)
    return connection.secured_conn.suite


async def test_no_bulk_goes_to_another_peer_than_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(transport_host, "aes_pays", lambda: True)
    other = ID.from_pubkey(create_new_key_pair().public_key).to_base58()
    async with bulk_pair() as (a, b):
        with pytest.raises(PeerUnreachable, match="pubkey"):
            await a.bulk.open_stream(other, [route_to(b)], BULK)


async def test_a_warm_connection_is_used_again_and_by_several_at_once():
    async with bulk_pair() as (a, b):
        streams: list[ByteStream] = []

        async def use() -> None:
            streams.append(await open_bulk(a, b))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(use)
        assert len({each.connection for each in streams}) == 1
        for each in streams:
            await each.close()
        assert (await open_bulk(a, b)).connection is streams[0].connection
        assert len(a.bulk.routes) == len(b.bulk.routes) == 1


async def test_nothing_but_bulk_is_served_there():
    async with bulk_pair() as (a, b):
        for protocol in (ECHO, "/baton/heartbeat/2", "/meshsub/1.1.0", "/ipfs/id/1.0.0"):
            with pytest.raises(PeerUnreachable):
                await a.bulk.open_stream(b.peer_id, [route_to(b)], protocol)
        assert len(a.bulk.routes) == 1
        assert await ask(a, b.peer_id) == b"ping"
        await open_bulk(a, b)


async def test_idle_ones_are_closed_and_made_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bulk, "IDLE_S", 0.2)
    monkeypatch.setattr(bulk, "_TIDY_S", 0.05)
    async with bulk_pair() as (a, b):
        stream = await open_bulk(a, b)
        await trio.sleep(1)
        await stream.send(b"busy")
        assert await stream.read_exactly(4) == b"busy"
        await stream.reset()
        await until(lambda: not a.bulk.routes and not b.bulk.routes)
        assert a.best_link(b.peer_id) is not None
        await open_bulk(a, b)


async def test_it_ends_with_the_last_link():
    async with bulk_pair() as (a, b):
        stream = await open_bulk(a, b)
        link = b.best_link(a.peer_id)
        assert link is not None
        await link.connection.close()
        with trio.fail_after(10), pytest.raises(ConnectionLost):
            await stream.read_exactly(1)
        await until(lambda: not a.bulk.routes and not b.bulk.routes)


async def test_it_needs_the_secret():
    async with running(secret=b"s" * 32) as a, running() as b, running(secret=b"s" * 32) as c:
        for host in (a, b, c):
            host.set_handler(BULK, repeat, bulk=True)
        for one, other in ((a, b), (b, a)):
            with pytest.raises(PeerUnreachable):
                await one.bulk.open_stream(other.peer_id, [route_to(other)], BULK)
        assert not a.bulk.routes
        assert not b.bulk.routes
        await open_bulk(a, c)


async def test_it_is_the_peer_that_was_meant():
    async with running() as a, running() as b, running() as c:
        c.set_handler(BULK, repeat, bulk=True)
        with pytest.raises(PeerUnreachable):
            await a.bulk.open_stream(b.peer_id, [route_to(c)], BULK)
        assert not a.bulk.routes


async def test_a_peer_that_knows_no_bulk_is_asked_once_a_minute():
    async with running() as a, running(fast=False) as b:
        assert await a.dial(b.peer_id, route_to(b))
        for words in ("no connection for bulk", "a moment ago"):
            with trio.fail_after(10), pytest.raises(PeerUnreachable, match=words):
                await a.bulk.open_stream(b.peer_id, [route_to(b)], BULK)
        b.set_handler(ECHO, echo)
        assert await ask(a, b.peer_id) == b"ping"


async def test_one_peer_cannot_hold_more_than_its_share(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bulk, "MAX_INBOUND_PER_PEER", 2)
    async with bulk_pair() as (a, b):
        first, second = await open_bulk(a, b), (await open_over(a, b, "x"))
        with pytest.raises(PeerUnreachable):
            await open_over(a, b, "y")
        assert len(b.bulk.routes) == 2
        # One that is idle makes room.
        await second.reset()
        await until(lambda: b.bulk.idle == 1)
        await open_over(a, b, "z")
        assert len(b.bulk.routes) == 2
        await first.send(b"here")
        assert await first.read_exactly(4) == b"here"


async def open_over(host: PeerHost, peer: PeerHost, remote: str) -> ByteStream:
    """Open a stream over what passes for another interface of the peer's."""
    route = Route(peer.addresses[0], "loopback", "lo", remote=remote)
    stream = await host.bulk.open_stream(peer.peer_id, [route], BULK)
    with trio.fail_after(10):
        await stream.send(b"ping")
        assert await stream.read_exactly(4) == b"ping"
    return stream


async def test_a_banned_peer_loses_its_bulk_connections():
    async with bulk_pair() as (a, b):
        stream = await open_bulk(a, b)
        await b.disconnect(a.peer_id)
        with trio.fail_after(10), pytest.raises(ConnectionLost):
            await stream.read_exactly(1)
        await until(lambda: not a.bulk.routes and not b.bulk.routes)


@pytest.mark.e2e
async def test_heartbeats_stay_quick_while_a_shaped_link_is_full():
    """30 MB/s, of which 100 ms may queue in the link; a membership timeout is 4 s."""
    with network(2) as cables:
        cables.set_rate(0, 240)
        command = [sys.executable, "-m", "tests.support.bulk_process"]
        serve = await trio.lowlevel.open_process(
            [*cables.prefix(0), *command, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        assert serve.stdin is not None
        assert serve.stdout is not None
        try:
            with trio.fail_after(120):
                where = b""
                while not where.endswith(b"\n"):
                    where += await serve.stdout.receive_some()
                fetch = [*cables.prefix(1), *command, "fetch", *where.decode().split()]
                done = await trio.run_process(
                    [*fetch, "90000000"], capture_stdout=True, stderr=subprocess.DEVNULL
                )
        finally:
            with trio.CancelScope(shield=True):
                await serve.stdin.aclose()
                await serve.wait()
    told = json.loads(done.stdout)
    assert told["bytes"] == 90_000_000
    # It takes 3 s at best, and a heartbeat is sent every second.
    assert len(told["round_trips"]) >= 2
    assert max(told["round_trips"]) < heartbeat.TIMEOUT_S / 4
