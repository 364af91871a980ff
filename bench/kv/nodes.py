"""The two nodes of a transfer: a libp2p host each, and the node's own code for `/kv-prefill/1`."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

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
from node.prefill.remote import prefill_there
from node.prefill.server import PrefillService
from node.prefill.transfer import inject_all
from node.transport.conduct import Lenient
from node.transport.guard import byte_stream_handler
from node.transport.host import new_fast_host
from node.transport.streams import ByteStream
from protocols.kv_prefill.messages import PROTOCOL_ID, Codec, Request, hash_tokens

__all__ = ["connect", "serve"]

_DEADLINE_S = 600.0


async def serve(ip: str, *, fast: bool, threads: int, tell: Callable[[str], None]) -> None:
    """Serve caches until cancelled.

    Args:
        ip: to listen on.
        fast: whether `node.transport` carries the connections, or py-libp2p's own noise and yamux.
        threads: that encode chunks.
        tell: told the address that `connect` takes.
    """
    engine = ReadyEngine(CacheData(), threads)
    service = PrefillService(lambda _: engine, Lenient())
    host = new_fast_host(create_new_key_pair(), fast=fast)
    host.set_stream_handler(TProtocol(PROTOCOL_ID), byte_stream_handler(service.serve))
    async with host.run([Multiaddr(f"/ip4/{ip}/tcp/0")]):
        tell(str(host.get_addrs()[0]))
        await trio.sleep_forever()


@asynccontextmanager
async def connect(address: str, *, fast: bool) -> AsyncGenerator[Fetch]:
    """Connect to the server at `address`; see `serve`."""
    host = new_fast_host(create_new_key_pair(), fast=fast)
    remote = Multiaddr(address)
    peer = ID.from_string(remote.value_for_protocol("p2p") or "")

    async def open_stream(peer_id: str, protocol: str) -> ByteStream:
        return ByteStream(await host.new_stream(ID.from_string(peer_id), [TProtocol(protocol)]))

    async def fetch(tokens: int, codec: Codec) -> Fetched:
        request, arrivals = _request(tokens, codec), Arrivals()
        sink = CacheSink(arrivals.add)
        async with prefill_there(open_stream, str(peer), request, LAYOUT) as source:
            result = await inject_all(source, sink, tokens, _DEADLINE_S, _ignore)
            await sink.drain()
        if not result.complete:
            raise BenchError(f"the cache did not come whole: {result.reason}")
        return arrivals.fetched(result.sent_bytes)

    async with host.run([]):
        await host.connect(PeerInfo(peer, [remote]))
        yield fetch


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
