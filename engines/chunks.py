"""Chunks on their way from an engine's step to the node: encoded and sent by other threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from loguru import logger

from engines.channel import NodeChannel
from protocols.engine import Failed, PrefillChunk, PrefillFinished, PrefillStarted
from protocols.kv_prefill.codec import encode_chunk
from protocols.kv_prefill.messages import Codec, Timings

__all__ = ["ChunkSender"]

MAX_UNACKNOWLEDGED = 64 << 20
"""Bytes of one request's chunks, raw, between the engine's step and the node's network. They keep a
link of 10 Gbit/s busy for 50 ms."""

ENCODERS: Final = max(2, min(4, (os.cpu_count() or 2) // 2))
"""Threads that encode. More would take from the computation what the link cannot use."""


class _Piece:
    """One chunk between `emit` and the channel."""

    def __init__(self, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]) -> None:
        self.layer, self.start, self.end, self.arrays = layer, start, end, arrays
        self.encoded: tuple[PrefillChunk, list[memoryview]] | None = None


@dataclass
class _Transfer:
    """What is known of one request's chunks."""

    received_at: float
    opened_at: float = 0.0
    finished_at: float = 0.0
    first_chunk_at: float = 0.0
    codec: Codec = "raw"
    pieces: deque[_Piece] = field(default_factory=deque)
    """In the order in which they were emitted, and will be sent."""
    sending: bool = False
    """Whether a thread is giving the channel what was the first piece."""
    unacknowledged: int = 0
    chunks: int = 0
    raw_bytes: int = 0
    sent_bytes: int = 0
    encode_s: float = 0.0
    computed: int = -1
    """Set by `finish`."""
    discarded: bool = False


class ChunkSender:
    """The engine process's `ChunkSink` (see `engines.base`).

    Several threads encode at once, whichever requests the chunks are of. A request's chunks leave
    in the order in which they were emitted all the same, so that the receiver can use a prefix of
    the cache as soon as possible.

    Args:
        channel: where the messages go.
        threads: how many encode at once.
    """

    def __init__(self, channel: NodeChannel, threads: int = ENCODERS) -> None:
        self._channel = channel
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="chunk-encoder")
        self._state = threading.Condition()
        self._transfers: dict[str, _Transfer] = {}

    def expect(self, request: str) -> None:
        """Note when a prefill was received: its queueing time counts from now."""
        with self._state:
            self._transfers[request] = _Transfer(received_at=time.monotonic())

    def open(self, request: str, codec: Codec, cached: int) -> None:
        """See `ChunkSink.open`."""
        with self._state:
            transfer = self._transfers.get(request)
            if transfer is None:
                return
            transfer.opened_at = time.monotonic()
            transfer.codec = codec
        self._channel.send(PrefillStarted(request=request, cached=cached, codec=codec))

    def emit(
        self, request: str, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]
    ) -> None:
        """See `ChunkSink.emit`."""
        size = sum(array.nbytes for array in arrays)
        with self._state:
            transfer = self._transfers.get(request)
            if transfer is None:
                return
            self._state.wait_for(
                lambda: transfer.discarded or transfer.unacknowledged < MAX_UNACKNOWLEDGED
            )
            if transfer.discarded:
                return
            piece = _Piece(layer, start, end, arrays)
            transfer.pieces.append(piece)
            transfer.unacknowledged += size
        job = self._pool.submit(self._encode, request, transfer, piece)
        job.add_done_callback(lambda done: self._fail_if_raised(request, done))

    def acknowledge(self, request: str, size: int, at: int | None = None) -> None:
        """Note that `size` payload bytes have left the node. Any thread.

        Args:
            request: whose they are.
            size: of one payload.
            at: where in shared memory it was, if it was there.
        """
        memory = self._channel.memory
        if at is not None and (memory is None or not memory.give_back(at, request)):
            logger.warning("the node gave back memory at {} that {} does not have", at, request)
        with self._state:
            transfer = self._transfers.get(request)
            if transfer is not None:
                transfer.unacknowledged -= size
                self._state.notify_all()

    def finish(self, request: str, computed: int) -> None:
        """See `ChunkSink.finish`."""
        with self._state:
            transfer = self._transfers.get(request)
            if transfer is None:
                return
            transfer.finished_at = time.monotonic()
            transfer.computed = computed
            finished = self._take_if_finished(request, transfer)
        if finished is not None:
            self._channel.send_bulk(request, finished)

    def discard(self, request: str) -> None:
        """See `ChunkSink.discard`."""
        with self._state:
            transfer = self._transfers.pop(request, None)
            if transfer is not None:
                transfer.discarded = True
                self._state.notify_all()
        self._channel.drop(request)

    def cancel(self, request: str) -> None:
        """Discard the request, of which the node will not read anything more. Any thread."""
        self.discard(request)
        if self._channel.memory is not None:
            self._channel.memory.give_back_all(request)

    def close(self) -> None:
        """Drop what has not been encoded yet and end the threads."""
        with self._state:
            for transfer in self._transfers.values():
                transfer.discarded = True
            self._transfers.clear()
            self._state.notify_all()
        self._pool.shutdown(cancel_futures=True)

    def _encode(self, request: str, transfer: _Transfer, piece: _Piece) -> None:
        if transfer.discarded:
            return
        began = time.monotonic()
        span = piece.layer, piece.start, piece.end
        chunk, payload = encode_chunk(*span, piece.arrays, transfer.codec)
        memory = self._channel.memory
        at = None if memory is None else memory.put(payload)
        with self._state:
            if memory is not None and at is not None:
                payload = []
                if transfer.discarded:
                    memory.drop(at)
                    return
                memory.assign(at, request)
            transfer.encode_s += time.monotonic() - began
            # The node acknowledges what it sees: encoded bytes.
            transfer.unacknowledged -= chunk.raw_size - chunk.size
            # What is not sent as it is need not be kept.
            piece.encoded, piece.arrays = (PrefillChunk(request, chunk, at), payload), ()
            self._state.notify_all()
        self._send_encoded(request, transfer)

    def _send_encoded(self, request: str, transfer: _Transfer) -> None:
        """Give the channel the pieces whose turn it is, unless another thread is doing it."""
        while True:
            with self._state:
                if transfer.sending or transfer.discarded or not transfer.pieces:
                    return
                encoded = transfer.pieces[0].encoded
                if encoded is None:
                    return
                transfer.pieces.popleft()
                transfer.sending = True
            message, payload = encoded
            chunk = message.chunk
            self._channel.send_bulk(request, message, payload)
            with self._state:
                transfer.sending = False
                transfer.first_chunk_at = transfer.first_chunk_at or time.monotonic()
                transfer.chunks += 1
                transfer.raw_bytes += chunk.raw_size
                transfer.sent_bytes += chunk.size
                finished = self._take_if_finished(request, transfer)
            if transfer.discarded:
                self._channel.drop(request)
            elif finished is not None:
                self._channel.send_bulk(request, finished)

    def _fail_if_raised(self, request: str, job: Future[None]) -> None:
        if job.cancelled():
            return
        error = job.exception()
        if error is not None:
            logger.opt(exception=error).error("a chunk of request {} could not be sent", request)
            self.discard(request)
            self._channel.send(Failed(request=request, code="engine", reason=repr(error)))

    def _take_if_finished(self, request: str, transfer: _Transfer) -> PrefillFinished | None:
        if transfer.computed < 0 or transfer.pieces or transfer.sending or transfer.discarded:
            return None
        del self._transfers[request]
        received = transfer.received_at
        return PrefillFinished(
            request=request,
            chunks=transfer.chunks,
            raw_bytes=transfer.raw_bytes,
            sent_bytes=transfer.sent_bytes,
            computed=transfer.computed,
            timings=Timings(
                queue_s=transfer.opened_at - received,
                compute_s=transfer.finished_at - transfer.opened_at,
                encode_s=transfer.encode_s,
                first_chunk_s=max(0.0, transfer.first_chunk_at - received),
            ),
        )
