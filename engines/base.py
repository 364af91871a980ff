"""What an engine is, and what it is given: the seam between a library and the engine process.

The engine process (`engines.process`) owns one `Engine`. It calls it from one thread, the main
one, and lets it work a step at a time: everything that takes long happens in `step`, in pieces
short enough that a cancellation between two of them is prompt (a few hundred milliseconds).
Results go out through the `Outbox` that the engine was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from protocols.chat import Message
from protocols.engine import (
    Capabilities,
    EngineMessage,
    FailureCode,
    Generate,
    Inject,
    Load,
    Prefill,
    Receive,
)
from protocols.kv_prefill.messages import Codec

__all__ = [
    "ChunkSink",
    "Engine",
    "EngineError",
    "EngineFactory",
    "LoadProgress",
    "Outbox",
    "conversation",
]

LoadProgress: TypeAlias = Callable[[str, float], None]
"""Told the stage of loading and how far it is, from 0 to 1."""


class EngineError(Exception):
    """A request that an engine cannot do; the node is told `code` and `reason`."""

    def __init__(self, code: FailureCode, reason: str) -> None:
        super().__init__(reason)
        self.code: FailureCode = code
        self.reason = reason


def conversation(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return messages as every engine gives them to a chat template.

    Engines must agree on it: a cache is of use only for the very tokens that it was computed from.

    Raises:
        EngineError: `bad_request`, if there are none.
    """
    if not messages:
        raise EngineError("bad_request", "there are no messages")
    # `developer` is OpenAI's newer word for `system`, which templates do not know.
    return [
        {"role": "system" if each.role == "developer" else each.role, "content": each.content}
        for each in messages
    ]


class Outbox(Protocol):
    """Takes messages to the node."""

    def send(self, message: EngineMessage) -> None:
        """Send a message without a payload. Thread-safe; never blocks for long."""
        ...


class ChunkSink(Protocol):
    """Takes a prefill's chunks as they are computed; encodes and sends them in other threads.

    For each request: `open`, any number of `emit`s, and one `finish`, or `discard`.
    """

    def open(self, request: str, codec: Codec, cached: int) -> None:
        """Say `PrefillStarted`. `cached` is how many prompt tokens a prefix cache held."""
        ...

    def emit(
        self, request: str, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]
    ) -> None:
        """Hand over one layer's arrays for tokens `[start, end)`.

        The arrays are in the layout's order and shapes, C-contiguous, and the sink's from now on:
        the caller must not write to them again. bfloat16 travels as uint16 views, float8 as uint8.
        Blocks while too many bytes of this request wait to be sent; returns at once, dropping the
        chunk, when the request has been cancelled.
        """
        ...

    def finish(self, request: str, computed: int) -> None:
        """Say `PrefillFinished` behind everything that was emitted. Does not block."""
        ...

    def discard(self, request: str) -> None:
        """Forget the request; chunks not yet sent are dropped. Says nothing. Any thread."""
        ...


class Engine(Protocol):
    """One loaded model.

    Any method but `step` and `unload` may raise `EngineError`; the process then answers `Failed`.
    After a request's terminal message the engine holds nothing of it.
    """

    def load(self, request: Load, progress: LoadProgress) -> Capabilities:
        """Load the checkpoint and measure it briefly.

        Raises:
            EngineError: it cannot be loaded, with a reason that says what to do.
        """
        ...

    def tokenize(self, messages: Sequence[Message]) -> list[int]:
        """Apply the model's chat template and tokenize, ready for the assistant to answer."""
        ...

    def prefill(self, request: Prefill) -> None:
        """Queue a prefill; `step` computes it and hands chunks to the `ChunkSink`."""
        ...

    def receive(self, request: Receive) -> None:
        """Make room for an injected cache."""
        ...

    def inject(self, request: Inject, payload: memoryview) -> None:
        """Put one chunk where `receive` made room. Sends `InjectRejected` for an unusable one."""
        ...

    def generate(self, request: Generate) -> None:
        """Queue a request for an answer; `step` reads the rest of the prompt and writes it."""
        ...

    def cancel(self, request: str) -> None:
        """Drop whatever the request holds. Unknown requests are no error. Says nothing."""
        ...

    def step(self) -> bool:
        """Do a piece of the pending work, and return whether there is more."""
        ...

    def unload(self) -> None:
        """Free the model."""
        ...


class EngineFactory(Protocol):
    """Makes an engine; each engine package's `engine` module has one called `create`."""

    def __call__(self, outbox: Outbox, sink: ChunkSink) -> Engine:
        """Make the engine, with nothing loaded yet."""
        ...
