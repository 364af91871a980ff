"""The two nodes of a transfer, and the node's own code for `/kv-prefill/1`.

What is measured goes as between two `baton up`: over a connection for bulk alone, beside a link and
its heartbeats. The reference is a bare host with py-libp2p's own noise and yamux.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import numpy as np
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from bench.client import BenchError
from bench.kv.data import LAYOUT, MODEL, CacheData
from bench.kv.engines import CacheSink, ReadyEngine
from bench.kv.transfer import Arrivals, Fetch, Fetched
from node.host import PeerHost
from node.interfaces import list_interfaces
from node.prefill.remote import OpenStream, prefill_there
from node.prefill.server import PrefillService
from node.prefill.transfer import inject_all
from node.routes import parse_peer, peer_address, rank_routes
from node.transport.conduct import Lenient
from node.transport.guard import byte_stream_handler
from node.transport.host import new_fast_host
from node.transport.streams import ByteStream
from protocols.kv_prefill.messages import PROTOCOL_ID, Codec, Request, hash_tokens

__all__ = ["connect", "serve"]

_DEADLINE_S = 600.0

_Handler: TypeAlias = Callable[[ByteStream], Awaitable[None]]


async def serve(ip: str, *, stock: bool, threads: int, tell: Callable[[str], None]) -> None:
    """Serve caches until cancelled.

    Args:
        ip: to listen on.
        stock: whether py-libp2p's own noise and yamux carry the connections.
        threads: that encode chunks.
        tell: told the address that `connect` takes.
    """
    engine = ReadyEngine(CacheData(), threads)
    service = PrefillService(lambda _: engine, Lenient())
    listening = _listen_stock(ip, service.serve) if stock else _listen(ip, service.serve)
    async with listening as address:
        tell(address)
        await trio.sleep_forever()


@asynccontextmanager
async def connect(address: str, *, stock: bool) -> AsyncGenerator[Fetch]:
    """Connect to the server at `address`; see `serve`.

    Raises:
        BenchError: nobody answers there.
    """
    peer_id = Multiaddr(address).value_for_protocol("p2p") or ""

    async def fetch(tokens: int, codec: Codec) -> Fetched:
        request, arrivals = _request(tokens, codec), Arrivals()
        sink = CacheSink(arrivals.add)
        async with prefill_there(open_stream, peer_id, request, LAYOUT) as source:
            result = await inject_all(source, sink, tokens, _DEADLINE_S, _ignore)
            await sink.drain()
        if not result.complete:
            raise BenchError(f"the cache did not come whole: {result.reason}")
        return arrivals.fetched(result.sent_bytes)

    async with _dialled_stock(address) if stock else _dialled(address) as open_stream:
        yield fetch


@asynccontextmanager
async def _listen(ip: str, serve: _Handler) -> AsyncGenerator[str]:
    interfaces = [each for each in list_interfaces() if ip in each.ips]
    host = PeerHost(create_new_key_pair(), interfaces, named=True)
    host.set_handler(PROTOCOL_ID, serve, bulk=True)
    async with host.running():
        (address,) = (each for each in host.addresses if f"/{ip}/" in each)
        yield peer_address(host.peer_id, address)


@asynccontextmanager
async def _dialled(address: str) -> AsyncGenerator[OpenStream]:
    peer_id, plain = parse_peer(address)
    interfaces = list_interfaces()
    route = rank_routes([plain], interfaces, restricted=True)[0]
    ours = [each for each in interfaces if each.name == route.interface]
    host = PeerHost(create_new_key_pair(), ours, named=True)

    async def open_stream(peer_id: str, protocol: str) -> ByteStream:
        return await host.bulk.open_stream(peer_id, [route], protocol)

    async with host.running():
        if not await host.dial(peer_id, route):
            raise BenchError(f"nobody answers at {address}")
        yield open_stream


@asynccontextmanager
async def _listen_stock(ip: str, serve: _Handler) -> AsyncGenerator[str]:
    host = new_fast_host(create_new_key_pair(), fast=False)
    host.set_stream_handler(TProtocol(PROTOCOL_ID), byte_stream_handler(serve))
    async with host.run([Multiaddr(f"/ip4/{ip}/tcp/0")]):
        yield str(host.get_addrs()[0])


@asynccontextmanager
async def _dialled_stock(address: str) -> AsyncGenerator[OpenStream]:
    host = new_fast_host(create_new_key_pair(), fast=False)
    remote = Multiaddr(address)
    peer = ID.from_string(remote.value_for_protocol("p2p") or "")

    async def open_stream(peer_id: str, protocol: str) -> ByteStream:
        return ByteStream(await host.new_stream(ID.from_string(peer_id), [TProtocol(protocol)]))

    async with host.run([]):
        await host.connect(PeerInfo(peer, [remote]))
        yield open_stream


def _request(tokens: int, codec: Codec) -> Request:
    packed = np.arange(tokens, dtype="<u4").tobytes()
    return Request(
        id=f"bench-{secrets.token_hex(4)}",
        model=MODEL,
        fingerprint=LAYOUT.fingerprint,
        tokens=packed,
        tokens_hash=hash_tokens(packed),
        start=0,
        end=tokens,
        dtypes=("bfloat16",),
        codecs=(codec,),
        deadline_ms=round(_DEADLINE_S * 1000),
    )


async def _ignore(_: int) -> None:
    await trio.lowlevel.checkpoint()
