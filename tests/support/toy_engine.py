"""An engine process with a model that anybody can compute by hand, for tests of what is around it.

Everything but the model is real: the process, its threads, the channel, the chunks. A token's keys
are a function of the token, its position and the layer, so that a cache that was damaged, shifted
or mixed up is noticed when it is used.

    python -P toy_engine.py [--step-s SECONDS] [--load-s SECONDS]
        [--fail-load | --crash-load | --no-hand-off] FD
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    Token,
)
from protocols.errors import ProtocolError
from protocols.kv_prefill.codec import decode
from protocols.kv_prefill.coverage import Coverage
from protocols.kv_prefill.messages import unpack_tokens

__all__ = ["ANSWER_TOKENS", "LAYOUT", "STEP_TOKENS", "answer_to", "command", "keys_of"]

LAYOUT = CacheLayout(
    dtype="bfloat16", layers=(AttentionLayer(2, 8, 8),) * 3, fingerprint="toy-model"
)
STEP_TOKENS = 32
ANSWER_TOKENS = 8
MAX_CONTEXT = 4096
OBSTACLE = "its caches are toys"
CRASH = "crash-now"
"""A prompt with this word kills the process in the first step that works on it."""


def command(*options: str) -> list[str]:
    """Return the command of an engine process."""
    return [sys.executable, "-P", str(Path(__file__)), *options]


def tokenize(text: str) -> list[int]:
    """Return a token per word."""
    return [zlib.crc32(word.encode()) % 50_000 for word in text.split()]


def keys_of(tokens: Sequence[int], start: int, end: int, layer: int) -> np.ndarray:
    """Return the keys of `tokens[start:end]` in a layer: uint16 `[end - start, 2, 8]`."""
    ids = np.array(tokens[start:end], dtype=np.uint32)
    positions = np.arange(start, end, dtype=np.uint32)
    column = (ids * 31 + positions * 7 + layer * 1009).astype(np.uint16)
    return np.ascontiguousarray(np.broadcast_to(column[:, None, None], (end - start, 2, 8)))


def answer_to(tokens: Sequence[int]) -> str:
    """Return the whole answer to a prompt."""
    seed = zlib.crc32(np.array(tokens, dtype=np.uint32).tobytes())
    return "".join(f"w{(seed + index) % 1000} " for index in range(ANSWER_TOKENS))


@dataclass
class Work:
    """A prefill or an answer on its way."""

    tokens: list[int]
    position: int
    prefill: Prefill | None = None
    generate: Generate | None = None
    began: float = field(default_factory=time.monotonic)
    computed: int = 0
    words: deque[str] = field(default_factory=deque)


@dataclass
class Injected:
    """A cache that is arriving."""

    coverage: Coverage
    keys: np.ndarray


class ToyEngine:
    """See `engines.base.Engine`."""

    def __init__(
        self,
        outbox: Outbox,
        sink: ChunkSink,
        step_s: float = 0.001,
        *,
        fail_load: bool = False,
        hand_off: bool = True,
        load_s: float = 0.0,
    ) -> None:
        self._outbox = outbox
        self._sink = sink
        self._step_s = step_s
        self._fail_load = fail_load
        self._hand_off = hand_off
        self._load_s = load_s
        self._work: dict[str, Work] = {}
        self._injected: dict[str, Injected] = {}

    def load(self, request: Load, progress: LoadProgress) -> Capabilities:
        progress("reading", 0.5)
        time.sleep(self._load_s)
        if self._fail_load:
            raise EngineError("unsupported", f"cannot load {request.model}")
        return Capabilities(
            engine="mlx",
            device="toy",
            layout=LAYOUT,
            max_context=MAX_CONTEXT,
            vocab_size=50_000,
            can_prefill=self._hand_off,
            can_inject=self._hand_off,
            can_generate=True,
            prefill_tokens_per_s=STEP_TOKENS / max(self._step_s, 1e-4),
            decode_tokens_per_s=1 / max(self._step_s, 1e-4),
            obstacle="" if self._hand_off else OBSTACLE,
        )

    def tokenize(self, messages: Sequence[Message]) -> list[int]:
        return tokenize(" ".join(message.content for message in messages))

    def prefill(self, request: Prefill) -> None:
        tokens = unpack_tokens(request.tokens)
        self._sink.open(request.request, request.codec, 0)
        self._work[request.request] = Work(tokens, request.start, prefill=request)

    def receive(self, request: Receive) -> None:
        if request.request not in self._injected:
            keys = np.zeros((len(LAYOUT.layers), request.end, 2, 8), dtype=np.uint16)
            coverage = Coverage(LAYOUT, request.start, request.end)
            self._injected[request.request] = Injected(coverage, keys)

    def inject(self, request: Inject, payload: memoryview) -> None:
        chunk = request.chunk
        injected = self._injected[request.request]
        try:
            keys, _ = decode(payload, chunk, LAYOUT)
        except ProtocolError as error:
            self._outbox.send(
                InjectRejected(
                    request=request.request,
                    layer=chunk.layer,
                    start=chunk.start,
                    end=chunk.end,
                    reason=str(error),
                )
            )
            return
        injected.keys[chunk.layer, chunk.start : chunk.end] = keys
        injected.coverage.add(chunk)

    def generate(self, request: Generate) -> None:
        tokens = unpack_tokens(request.tokens)
        if len(tokens) >= MAX_CONTEXT:
            raise EngineError("too_long", "too long")
        injected = self._injected.pop(request.request, None)
        usable = 0
        if injected is not None:
            usable = injected.coverage.usable_end
            for layer in range(len(LAYOUT.layers)):
                if (injected.keys[layer, :usable] != keys_of(tokens, 0, usable, layer)).any():
                    raise EngineError("engine", f"the cache of layer {layer} is wrong")
        self._outbox.send(
            GenerateStarted(
                request=request.request, injected=usable, cached=0, compute=len(tokens) - usable
            )
        )
        self._work[request.request] = Work(tokens, usable, generate=request)

    def cancel(self, request: str) -> None:
        self._work.pop(request, None)
        self._injected.pop(request, None)

    def step(self) -> bool:
        for request, work in list(self._work.items()):
            time.sleep(self._step_s)
            if zlib.crc32(CRASH.encode()) % 50_000 in work.tokens:
                sys.stderr.write("the toy engine was told to crash\n")
                sys.stderr.flush()
                os._exit(3)
            if work.prefill is not None:
                self._step_prefill(request, work, work.prefill)
            elif work.generate is not None:
                self._step_generate(request, work, work.generate)
        return bool(self._work)

    def unload(self) -> None:
        self._work.clear()

    def _step_prefill(self, request: str, work: Work, prefill: Prefill) -> None:
        end = min(work.position + STEP_TOKENS, prefill.end)
        for layer in range(len(LAYOUT.layers)):
            keys = keys_of(work.tokens, work.position, end, layer)
            if prefill.deliver:
                self._sink.emit(request, layer, work.position, end, (keys, keys.copy()))
        work.computed += end - work.position
        work.position = end
        if end == prefill.end:
            self._sink.finish(request, work.computed)
            del self._work[request]

    def _step_generate(self, request: str, work: Work, generate: Generate) -> None:
        if work.position < len(work.tokens):
            work.position = min(work.position + STEP_TOKENS, len(work.tokens))
            if work.position < len(work.tokens):
                return
            limit = generate.sampling.max_tokens or ANSWER_TOKENS
            work.words.extend(word + " " for word in answer_to(work.tokens).split()[:limit])
        self._outbox.send(Token(request=request, token=1, text=work.words.popleft()))
        work.computed += 1
        if not work.words:
            self._outbox.send(
                Finished(
                    request=request,
                    reason="stop",
                    text="",
                    prompt_tokens=len(work.tokens),
                    completion_tokens=work.computed,
                    prefill_s=time.monotonic() - work.began,
                    decode_s=0.0,
                )
            )
            del self._work[request]


def main() -> int:
    """Run the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-s", type=float, default=0.001)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--fail-load", action="store_true")
    parser.add_argument("--crash-load", action="store_true")
    parser.add_argument("--no-hand-off", action="store_true")
    parser.add_argument("fd", type=int)
    options = parser.parse_args()
    if options.crash_load:
        sys.stderr.write("the toy engine was told to crash while loading\n")
        return 4
    channel = NodeChannel(socket.socket(fileno=options.fd))
    sink = ChunkSender(channel)
    engine = ToyEngine(
        channel,
        sink,
        options.step_s,
        fail_load=options.fail_load,
        hand_off=not options.no_hand_off,
        load_s=options.load_s,
    )
    return EngineProcess(engine, channel, sink).run()


if __name__ == "__main__":
    sys.exit(main())
