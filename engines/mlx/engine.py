"""The MLX engine: decodes from caches computed elsewhere, and computes what they lack."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from loguru import logger

from engines.base import ChunkSink, EngineError, LoadProgress, Outbox
from protocols.cache import ITEM_SIZES
from protocols.engine import (
    Capabilities,
    Generate,
    GenerateStarted,
    Inject,
    InjectRejected,
    Load,
    Prefill,
    Receive,
)
from protocols.errors import ProtocolError
from protocols.kv_prefill.messages import unpack_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from engines.mlx.caches import PromptCache
    from engines.mlx.injection import Injection
    from engines.mlx.loading import LoadedModel
    from engines.mlx.scheduler import Scheduler
    from protocols.chat import Message

__all__ = ["MlxEngine", "create"]

_INSTALL: Final = "install baton[mlx] on a Mac, baton[cpu] elsewhere"
_ROOM_FOR_ANSWER: Final = 256
"""Tokens of an answer that memory is taken for before it is known how long it gets."""


def create(outbox: Outbox, sink: ChunkSink) -> MlxEngine:
    """Make the engine, with nothing loaded yet; it emits no chunks, so `sink` stays unused."""
    return MlxEngine(outbox)


class MlxEngine:
    """An `engines.base.Engine` on mlx-lm.

    Args:
        outbox: takes its messages.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._model: LoadedModel | None = None
        self._scheduler: Scheduler | None = None
        self._injections: dict[str, Injection] = {}
        self._context = 0

    def load(self, request: Load, progress: LoadProgress) -> Capabilities:
        """Load the checkpoint and measure it for a second or two.

        Raises:
            EngineError: MLX is not there, or it cannot load the checkpoint.
        """
        progress("libraries", 0.0)
        try:
            from engines.mlx.loading import load_model
            from engines.mlx.probe import measure
            from engines.mlx.scheduler import Pacer, Scheduler
        except ImportError as error:
            raise EngineError("unsupported", f"MLX is not usable: {error}; {_INSTALL}") from error
        loaded = load_model(Path(request.path), progress)
        progress("measuring", 0.9)
        rates = measure(loaded)
        self._model = loaded
        self._context = _context_within(loaded, request)
        self._scheduler = Scheduler(self._outbox, Pacer(rates.prefill))
        progress("ready", 1.0)
        return Capabilities(
            engine="mlx",
            device=loaded.device,
            layout=loaded.layout,
            max_context=self._context,
            vocab_size=loaded.vocab_size,
            can_prefill=False,
            can_inject=bool(loaded.layers),
            can_generate=True,
            prefill_tokens_per_s=rates.prefill,
            decode_tokens_per_s=rates.decode,
            obstacle=loaded.obstacle,
        )

    def tokenize(self, messages: Seq[Message]) -> list[int]:
        """Apply the model's chat template and tokenize, ready for the assistant to answer.

        Raises:
            EngineError: there is no template, or it refuses these messages.
        """
        return self._loaded.tokenize(messages)

    def prefill(self, request: Prefill) -> None:
        """Refuse: this engine does not prefill for others.

        Raises:
            EngineError: always.
        """
        raise EngineError("unsupported", "the MLX engine does not prefill for other nodes yet")

    def receive(self, request: Receive) -> None:
        """Make room for a cache of `[0, end)`; asked again for the same, it keeps what came.

        Raises:
            EngineError: the range is not one that can be used, or the model's caches are not.
        """
        from engines.mlx.injection import Injection

        loaded = self._loaded
        if not loaded.layers:
            raise EngineError(
                "unsupported",
                f"this model's caches cannot be injected into MLX: {loaded.obstacle}",
            )
        if request.start != 0:
            raise EngineError("unsupported", f"a cache must start at 0, not at {request.start}")
        if request.end < 1:
            raise EngineError("bad_request", f"a cache of [0, {request.end}) is empty")
        if request.end >= self._context:
            raise EngineError(
                "too_long", f"a cache of {request.end} tokens in a context of {self._context}"
            )
        held = self._injections.get(request.request)
        layout = msgspec.structs.replace(loaded.layout, dtype=request.dtype)
        if held is None or held.end != request.end:
            self._injections[request.request] = Injection(
                layout, loaded.layers, request.end, loaded.dtype
            )
        elif held.wire_dtype != request.dtype:
            held.expect(layout)

    def inject(self, request: Inject, payload: memoryview) -> None:
        """Put one chunk in its place; says `InjectRejected` of one that cannot be used."""
        injection = self._injections.get(request.request)
        chunk = request.chunk
        if injection is None:
            logger.debug("a chunk for {}, which has no room or has begun", request.request)
            return
        try:
            injection.add(chunk, payload)
        except ProtocolError as error:
            logger.warning("a chunk for {} cannot be used: {}", request.request, error)
            self._outbox.send(
                InjectRejected(
                    request=request.request,
                    layer=chunk.layer,
                    start=chunk.start,
                    end=chunk.end,
                    reason=str(error),
                )
            )

    def generate(self, request: Generate) -> None:
        """Queue a request for an answer, on whatever of its cache has been injected.

        Raises:
            EngineError: the prompt or a sampling parameter is not valid, or the prompt too long.
        """
        from engines.mlx.sequence import Sequence

        loaded, scheduler = self._loaded, self._running
        if request.request in scheduler:
            raise EngineError("bad_request", f"{request.request} is being answered already")
        tokens = self._checked(request.tokens)
        caches, injected = self._caches_for(request, len(tokens))
        sequence = Sequence(
            request.request, loaded, tokens, request.sampling, self._context, caches, injected
        )
        rest = sequence.to_compute
        # The last token is decoded and not prefilled; it counts as computed along with others.
        compute = rest + 1 if rest else 0
        self._outbox.send(
            GenerateStarted(request.request, injected=injected, cached=0, compute=compute)
        )
        scheduler.add(sequence)

    def cancel(self, request: str) -> None:
        """Drop whatever the request holds. Unknown requests are no error. Says nothing."""
        self._injections.pop(request, None)
        if self._scheduler is not None:
            self._scheduler.cancel(request)

    def step(self) -> bool:
        """Do a piece of the pending work, and return whether there is more."""
        return self._scheduler.step() if self._scheduler is not None else False

    def unload(self) -> None:
        """Free the model."""
        self._model = self._scheduler = None
        self._injections.clear()
        gc.collect()

    @property
    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise EngineError("engine", "no model is loaded")
        return self._model

    @property
    def _running(self) -> Scheduler:
        if self._scheduler is None:
            raise EngineError("engine", "no model is loaded")
        return self._scheduler

    def _checked(self, packed: bytes) -> list[int]:
        """Unpack a prompt, and raise `EngineError` for one that cannot be answered."""
        try:
            tokens = unpack_tokens(packed)
        except ValueError as error:
            raise EngineError("bad_request", f"the prompt: {error}") from error
        if not tokens:
            raise EngineError("bad_request", "the prompt is empty")
        if len(tokens) >= self._context:
            raise EngineError(
                "too_long",
                f"a prompt of {len(tokens)} tokens leaves no room for an answer in a context of "
                f"{self._context}",
            )
        if (largest := max(tokens)) >= self._loaded.vocab_size:
            raise EngineError(
                "bad_request",
                f"token id {largest} is outside a vocabulary of {self._loaded.vocab_size}",
            )
        return tokens

    def _caches_for(self, request: Generate, prompt: int) -> tuple[Seq[PromptCache], int]:
        """Return the caches to start from, and how many tokens they hold."""
        from engines.mlx.caches import allocate, as_caches

        loaded = self._loaded
        injection = self._injections.pop(request.request, None)
        if injection is not None:
            if injection.end > prompt - 1:
                raise EngineError(
                    "bad_request",
                    f"an injected cache of {injection.end} tokens for a prompt of {prompt}: the "
                    "last token must be left to decode",
                )
            return injection.take(prompt - 1)
        if loaded.layers:
            room = min(request.sampling.max_tokens or _ROOM_FOR_ANSWER, _ROOM_FOR_ANSWER)
            return as_caches(allocate(loaded.layers, prompt + room, loaded.dtype), 0), 0
        return loaded.empty_caches(), 0


def _context_within(loaded: LoadedModel, request: Load) -> int:
    """Return the context in tokens: the model's, within the caps on tokens and on memory."""
    context = min(loaded.context, request.max_context or loaded.context)
    if request.memory_bytes and loaded.layers:
        item_size = loaded.dtype.size / ITEM_SIZES[loaded.layout.dtype]
        per_token = math.ceil(loaded.layout.total_nbytes(0, 1) * item_size)
        context = min(context, request.memory_bytes // per_token)
    if context < 2:
        raise EngineError("out_of_memory", f"the memory given holds a context of {context} tokens")
    return context
