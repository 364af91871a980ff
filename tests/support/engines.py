"""The two ends that an engine is given, kept in memory, and ways to drive an engine by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np

from engines.base import Engine
from protocols.chat import Sampling
from protocols.engine import (
    EngineMessage,
    Failed,
    Finished,
    Generate,
    PrefillFinished,
    PrefillStarted,
    Token,
)
from protocols.kv_prefill.messages import Codec, Timings, pack_tokens

__all__ = ["Answer", "Emitted", "MemoryOutbox", "MemorySink", "answer_of", "drive", "generate"]

M = TypeVar("M", bound=msgspec.Struct)


class MemoryOutbox:
    """Keeps every message."""

    def __init__(self) -> None:
        self.messages: list[EngineMessage] = []

    def send(self, message: EngineMessage) -> None:
        self.messages.append(message)

    def of(self, kind: type[M], request: str | None = None) -> list[M]:
        """Return the messages of one type, of one request if given."""
        return [
            message
            for message in self.messages
            if isinstance(message, kind) and request in (None, getattr(message, "request", None))
        ]


@dataclass
class Emitted:
    """One call of `ChunkSink.emit`."""

    layer: int
    start: int
    end: int
    arrays: list[np.ndarray]


@dataclass
class MemorySink:
    """Keeps every chunk by request, and tells the outbox what the real one does."""

    outbox: MemoryOutbox
    chunks: dict[str, list[Emitted]] = field(default_factory=dict)
    discarded: set[str] = field(default_factory=set)

    def open(self, request: str, codec: Codec, cached: int) -> None:
        self.chunks[request] = []
        self.outbox.send(PrefillStarted(request=request, cached=cached, codec=codec))

    def emit(
        self, request: str, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]
    ) -> None:
        assert all(array.flags.c_contiguous for array in arrays)
        if request not in self.discarded:
            self.chunks[request].append(Emitted(layer, start, end, list(arrays)))

    def finish(self, request: str, computed: int) -> None:
        arrays = [array for chunk in self.chunks[request] for array in chunk.arrays]
        size = sum(array.nbytes for array in arrays)
        self.outbox.send(
            PrefillFinished(
                request=request,
                chunks=len(self.chunks[request]),
                raw_bytes=size,
                sent_bytes=size,
                computed=computed,
                timings=Timings(queue_s=0, compute_s=0, encode_s=0, first_chunk_s=0),
            )
        )

    def discard(self, request: str) -> None:
        self.discarded.add(request)
        self.chunks.pop(request, None)


@dataclass(frozen=True)
class Answer:
    """What a request was answered with."""

    tokens: list[int]
    text: str
    finished: Finished


def drive(engine: Engine, until: Callable[[], bool] = lambda: False, steps: int = 10_000) -> None:
    """Step the engine until nothing is left to do, or `until` says so.

    Raises:
        AssertionError: that takes more than `steps` steps.
    """
    for _ in range(steps):
        if until() or not engine.step():
            return
    raise AssertionError(f"still busy after {steps} steps")


def answer_of(outbox: MemoryOutbox, request: str) -> Answer:
    """Return the answer to a request that ended well.

    Raises:
        AssertionError: it failed, or has not ended.
    """
    assert not outbox.of(Failed, request)
    (finished,) = outbox.of(Finished, request)
    tokens = outbox.of(Token, request)
    text = "".join(token.text for token in tokens) + finished.text
    return Answer([token.token for token in tokens], text, finished)


def generate(
    engine: Engine, outbox: MemoryOutbox, request: str, prompt: list[int], sampling: Sampling
) -> Answer:
    """Answer one prompt to the end."""
    engine.generate(Generate(request=request, tokens=pack_tokens(prompt), sampling=sampling))
    drive(engine, until=lambda: bool(outbox.of(Finished, request) or outbox.of(Failed, request)))
    return answer_of(outbox, request)
