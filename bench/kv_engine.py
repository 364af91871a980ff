"""An engine process that computes nothing: it hands out caches that it has, or takes them in.

Everything around the model is real: the process, its threads, the channel, the chunks, and copies
where an engine makes them. It exists to measure the way of a cache between engine and node.

    python -m bench.kv_engine --tokens TOKENS --codec-threads N FD
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from engines.base import ChunkSink, EngineError, LoadProgress, Outbox
from engines.channel import NodeChannel
from engines.chunks import ChunkSender
from engines.process import EngineProcess
from protocols.cache import AttentionLayer, CacheLayout
from protocols.chat import Message
from protocols.engine import (
    Capabilities,
    Finished,
    Generate,
    GenerateStarted,
    Inject,
    InjectRejected,
    Load,
    Prefill,
    Receive,
)
from protocols.errors import ProtocolError
from protocols.kv_prefill.codec import decode
from protocols.kv_prefill.coverage import Coverage

__all__ = ["BYTES_PER_TOKEN", "LAYOUT", "command", "tokens_for"]

_HEADS: Final = 8
_DIM: Final = 128
LAYOUT: Final = CacheLayout(
    dtype="bfloat16", layers=(AttentionLayer(_HEADS, _DIM, _DIM),) * 32, fingerprint="kv-engine"
)
"""Of Llama-3.1-8B."""
BYTES_PER_TOKEN: Final = LAYOUT.total_nbytes(0, 1)
_CHUNK_TOKENS: Final = 1024
_BANK: Final = 8
"""Different arrays that chunks are copied from."""


def command(tokens: int, threads: int = 1) -> list[str]:
    """Return the command of an engine process for caches of `tokens`."""
    arguments = ["--tokens", str(tokens), "--codec-threads", str(threads)]
    return [sys.executable, "-m", "bench.kv_engine", *arguments]


def tokens_for(nbytes: int) -> int:
    """Return how many tokens have a cache of about so many bytes; at least one."""
    return max(1, round(nbytes / BYTES_PER_TOKEN))


class KvEngine:
    """See `engines.base.Engine`.

    Args:
        outbox: takes its messages.
        sink: takes the chunks that it hands out.
        tokens: of the caches that it takes in, at most; their memory is there from the start.
    """

    def __init__(self, outbox: Outbox, sink: ChunkSink, tokens: int) -> None:
        self._outbox = outbox
        self._sink = sink
        self._tokens = tokens
        self._work: deque[tuple[Prefill, int, int]] = deque()
        self._coverage: dict[str, Coverage] = {}
        self._bank: list[np.ndarray] = []
        self._cache = np.zeros((0, 2, _HEADS, tokens, _DIM), np.uint16)

    def load(self, request: Load, progress: LoadProgress) -> Capabilities:
        progress("making numbers", 0.5)
        if request.model == "prefill":
            generator = np.random.default_rng(1)
            scales = np.exp(generator.normal(0, 0.4, (_HEADS, _DIM))).astype(np.float32)
            for _ in range(_BANK):
                numbers = generator.standard_normal((_CHUNK_TOKENS, _HEADS, _DIM), np.float32)
                bits = (numbers * scales).view(np.uint32) >> 16
                self._bank.append(np.ascontiguousarray(bits.astype(np.uint16)))
        else:
            # `full`, and not `zeros`: the memory is to be there before it is measured.
            shape = (len(LAYOUT.layers), 2, _HEADS, self._tokens, _DIM)
            self._cache = np.full(shape, 1, np.uint16)
        return Capabilities(
            engine="vllm",
            device="none",
            layout=LAYOUT,
            max_context=self._tokens + 1,
            vocab_size=1000,
            can_prefill=True,
            can_inject=True,
            can_generate=True,
            prefill_tokens_per_s=1e6,
            decode_tokens_per_s=1.0,
        )

    def tokenize(self, messages: Sequence[Message]) -> list[int]:
        raise EngineError("unsupported", "there is no tokenizer")

    def prefill(self, request: Prefill) -> None:
        self._sink.open(request.request, request.codec, 0)
        self._work.append((request, request.start, 0))

    def receive(self, request: Receive) -> None:
        self._coverage[request.request] = Coverage(LAYOUT, 0, request.end)

    def inject(self, request: Inject, payload: memoryview) -> None:
        coverage = self._coverage.get(request.request)
        if coverage is None:
            return
        chunk = request.chunk
        try:
            arrays = decode(payload, chunk, LAYOUT)
        except ProtocolError as error:
            span = chunk.layer, chunk.start, chunk.end
            self._outbox.send(InjectRejected(request.request, *span, reason=str(error)))
            return
        for part, array in enumerate(arrays):
            place = self._cache[chunk.layer, part, :, chunk.start : chunk.end]
            np.copyto(place, array.transpose(1, 0, 2))
        coverage.add(chunk)

    def generate(self, request: Generate) -> None:
        coverage = self._coverage.pop(request.request)
        usable = coverage.usable_end
        self._outbox.send(GenerateStarted(request.request, injected=usable, cached=0, compute=0))
        self._outbox.send(Finished(request.request, "stop", "", usable, 0, 0.0, 0.0))

    def cancel(self, request: str) -> None:
        self._work = deque(work for work in self._work if work[0].request != request)
        self._coverage.pop(request, None)

    def step(self) -> bool:
        if not self._work:
            return False
        request, start, layer = self._work.popleft()
        end = min(start + _CHUNK_TOKENS, request.end)
        # As readers of an engine's pages do, each into memory of its own.
        arrays = [self._bank[(2 * layer + part) % _BANK][: end - start].copy() for part in (0, 1)]
        self._sink.emit(request.request, layer, start, end, arrays)
        layer += 1
        if layer == len(LAYOUT.layers):
            start, layer = end, 0
        if start == request.end:
            self._sink.finish(request.request, request.end - request.start)
        else:
            self._work.appendleft((request, start, layer))
        return True

    def unload(self) -> None:
        self._work.clear()


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--codec-threads", type=int, default=1)
    parser.add_argument("fd", type=int)
    options = parser.parse_args()
    channel = NodeChannel(socket.socket(fileno=options.fd))
    sink = ChunkSender(channel, options.codec_threads)
    return EngineProcess(KvEngine(channel, sink, options.tokens), channel, sink).run()


if __name__ == "__main__":
    sys.exit(_main())
