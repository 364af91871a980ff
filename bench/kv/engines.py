"""Engines for a measurement: one that hands out chunks without computing, one that takes them in.

They stand where a node talks to an engine process, so that everything from there on is the node's
own code: chunks are encoded on another thread and bounded in number, as `engines.chunks` does, and
on the other side decoded and checked on another thread, as an engine's injection does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import trio

from bench.kv.data import LAYOUT, MODEL, CacheData, Piece, pieces
from node.instances.connection import RequestHandle
from node.instances.instance import Instance, InstanceSpec
from protocols.cache import CacheLayout
from protocols.engine import (
    Acknowledge,
    Capabilities,
    Inject,
    NodeMessage,
    Prefill,
    PrefillChunk,
    PrefillFinished,
    PrefillStarted,
    Receive,
)
from protocols.framing import Frame
from protocols.kv_prefill.codec import decode, encode_chunk
from protocols.kv_prefill.messages import Chunk, Codec, Timings

__all__ = ["CacheSink", "ReadyEngine"]

T = TypeVar("T")

_AHEAD: Final = 6
"""Chunks that are encoded before they are asked for."""
_MAX_UNDECODED: Final = 64 << 20
"""Bytes that wait to be decoded: as an engine process's inbox."""


class ReadyEngine(Instance):
    """An instance whose engine has computed every cache already.

    Args:
        data: what it hands out.
        threads: that encode.
    """

    def __init__(self, data: CacheData, threads: int) -> None:
        async def nowhere() -> Path:
            return Path()

        spec = InstanceSpec(model=MODEL, engine="vllm", roles=("prefill",))
        super().__init__(spec, MODEL, nowhere, lambda: None, lambda *_: None)
        self.state = "ready"
        self.epoch = "bench"
        self.capabilities = Capabilities(
            engine="vllm",
            device="none",
            layout=LAYOUT,
            max_context=1 << 24,
            vocab_size=1 << 24,
            can_prefill=True,
            can_inject=False,
            can_generate=False,
            prefill_tokens_per_s=0.0,
            decode_tokens_per_s=0.0,
        )
        self._data = data
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="chunk-encoder")

    def request(self, request: str) -> RequestHandle:
        """See `Instance.request`."""
        return _Prefilled(request, self._data, self._pool)


class _Prefilled(RequestHandle):
    """A request to `ReadyEngine`."""

    def __init__(self, request: str, data: CacheData, pool: ThreadPoolExecutor) -> None:
        self.id = request
        self._data = data
        self._pool = pool
        self._codec: Codec = "raw"
        self._pieces = enumerate(pieces(0))
        self._encoding: deque[Future[tuple[Chunk, memoryview]]] = deque()
        self._started = False
        self._unreleased = 0
        self._released = trio.Event()
        self._chunks = self._raw = self._sent = self._tokens = 0
        self._began = time.monotonic()

    async def send(self, message: NodeMessage, payload: memoryview | None = None) -> None:
        await trio.lowlevel.checkpoint()
        match message:
            case Prefill():
                self._codec, self._tokens = message.codec, message.end
                self._pieces = enumerate(pieces(message.end))
                self._began = time.monotonic()
            case Acknowledge():
                self._unreleased -= 1
                self._released.set()
            case _:
                raise TypeError(f"nothing that a prefill is told: {message}")

    async def receive(self) -> Frame:
        if not self._started:
            self._started = True
            await trio.lowlevel.checkpoint()
            return Frame(PrefillStarted(self.id, 0, self._codec), memoryview(b""))
        while self._unreleased >= _AHEAD:
            self._released = trio.Event()
            await self._released.wait()
        while len(self._encoding) + self._unreleased < _AHEAD:
            following = next(self._pieces, None)
            if following is None:
                break
            self._encoding.append(self._pool.submit(self._encode, *following))
        if not self._encoding:
            return Frame(self._finished(), memoryview(b""))
        chunk, encoded = await _result(self._encoding.popleft())
        self._unreleased += 1
        self._chunks += 1
        self._raw += chunk.raw_size
        self._sent += chunk.size
        return Frame(PrefillChunk(self.id, chunk), encoded)

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()
        for job in self._encoding:
            job.cancel()

    def _encode(self, index: int, piece: Piece) -> tuple[Chunk, memoryview]:
        arrays = self._data.arrays(index, piece)
        chunk, buffers = encode_chunk(*piece, arrays, self._codec)
        if chunk.codec == "raw":
            return chunk, self._data.raw(index, piece)
        # In one piece, as it comes from an engine process.
        return chunk, memoryview(b"".join(buffers))

    def _finished(self) -> PrefillFinished:
        took = time.monotonic() - self._began
        timings = Timings(queue_s=0.0, compute_s=took, encode_s=0.0, first_chunk_s=0.0)
        return PrefillFinished(self.id, self._chunks, self._raw, self._sent, self._tokens, timings)


class CacheSink(RequestHandle):
    """Takes a cache in, as the request of a decode engine would: checks every chunk, keeps none.

    Args:
        on_chunk: told the raw bytes of a chunk when it has been checked, on the trio loop.
    """

    def __init__(self, on_chunk: Callable[[int], None] = lambda _: None) -> None:
        self.id = "bench"
        self.raw_bytes = 0
        """Of chunks that were found to be right."""
        self._on_chunk = on_chunk
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="chunk-decoder")
        self._layout: CacheLayout = LAYOUT
        self._decoding: deque[tuple[int, Future[int]]] = deque()
        self._undecoded = 0

    async def send(self, message: NodeMessage, payload: memoryview | None = None) -> None:
        match message:
            case Receive():
                await trio.lowlevel.checkpoint()
            case Inject() if payload is not None:
                self._decoding.append(
                    (message.chunk.size, self._pool.submit(self._decode, message.chunk, payload))
                )
                self._undecoded += message.chunk.size
                await self._settle(_MAX_UNDECODED)
            case _:
                raise TypeError(f"nothing that an injection is told: {message}")

    async def drain(self) -> None:
        """Wait until everything has been checked.

        Raises:
            ProtocolError: a chunk was not what its header says.
        """
        await self._settle(0)
        self._pool.shutdown(wait=False)

    async def _settle(self, most: int) -> None:
        await trio.lowlevel.checkpoint()
        while self._decoding and (self._undecoded > most or self._decoding[0][1].done()):
            size, job = self._decoding.popleft()
            decoded = await _result(job)
            self._undecoded -= size
            self.raw_bytes += decoded
            self._on_chunk(decoded)

    def _decode(self, chunk: Chunk, payload: memoryview) -> int:
        decode(payload, chunk, self._layout)
        return chunk.raw_size


async def _result(job: Future[T]) -> T:
    if not job.done():
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()
        job.add_done_callback(lambda _: token.run_sync_soon(done.set))
        await done.wait()
    return job.result()
