"""What becomes of a request while vLLM works on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from engines.base import ChunkSink, Outbox
from protocols.engine import (
    Finished,
    FinishReason,
    Generate,
    GenerateStarted,
    Prefill,
    Progress,
    Token,
)
from protocols.kv_prefill.messages import Codec

if TYPE_CHECKING:
    import numpy as np
    from vllm.outputs import RequestOutput

__all__ = ["GenerateJob", "PrefillJob"]


class PrefillJob:
    """Hands a prompt's cache to the sink while it is being computed."""

    def __init__(self, request: Prefill, sink: ChunkSink) -> None:
        self.request = request.request
        self.failure: str | None = None
        self._sink = sink
        self._codec: Codec = request.codec
        self._prompt = request.end
        self._handed = request.start if request.deliver else request.end
        self._started = False
        self._computed = 0

    def scheduled(self, computed: int, count: int) -> tuple[int, int]:
        """See `handoff.Job.scheduled`.

        What is wanted starts where the last step's ended. In the first step, that takes in what a
        prefix cache held; after a preemption, nothing is wanted until there is something new.
        """
        if not self._started:
            self._started = True
            self._sink.open(self.request, self._codec, computed)
        reached = min(computed + count, self._prompt)
        self._computed += max(0, reached - computed)
        wanted = self._handed, max(self._handed, reached)
        self._handed = wanted[1]
        return wanted

    def take(self, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]) -> None:
        """See `handoff.Job.take`."""
        self._sink.emit(self.request, layer, start, end, arrays)

    def fail(self, reason: str) -> None:
        """See `handoff.Job.fail`."""
        self.failure = reason

    def advance(self, output: RequestOutput) -> bool:
        """Take in what a step brought; return whether the request is finished."""
        if output.finished:
            self._sink.finish(self.request, self._computed)
        return output.finished


class GenerateJob:
    """Sends an answer token by token."""

    def __init__(self, request: Generate, prompt_tokens: int, outbox: Outbox) -> None:
        self.request = request.request
        self.failure: str | None = None
        self._outbox = outbox
        self._prompt = prompt_tokens
        self._cached: int | None = None
        self._tokens = 0
        self._started_at = self._first_token_at = 0.0

    def scheduled(self, computed: int, count: int) -> tuple[int, int]:
        """See `handoff.Job.scheduled`; this request's cache stays where it is."""
        if self._cached is None:
            self._cached = computed
            self._started_at = time.monotonic()
            compute = self._prompt - computed
            self._outbox.send(
                GenerateStarted(request=self.request, injected=0, cached=computed, compute=compute)
            )
        elif computed < self._prompt:
            self._outbox.send(
                Progress(
                    request=self.request,
                    done=max(0, computed - self._cached),
                    total=self._prompt - self._cached,
                )
            )
        return 0, 0

    def take(self, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]) -> None:
        """See `handoff.Job.take`; nothing is wanted, so nothing comes."""

    def fail(self, reason: str) -> None:
        """See `handoff.Job.fail`."""
        self.failure = reason

    def advance(self, output: RequestOutput) -> bool:
        """Take in what a step brought; return whether the request is finished."""
        answer = output.outputs[0]
        if answer.token_ids and not self._tokens:
            self._first_token_at = time.monotonic()
        self._tokens += len(answer.token_ids)
        for place, token in enumerate(answer.token_ids, start=1):
            text = answer.text if place == len(answer.token_ids) else ""
            self._outbox.send(Token(request=self.request, token=token, text=text))
        if not output.finished:
            return False
        now = time.monotonic()
        first = self._first_token_at or now
        self._outbox.send(
            Finished(
                request=self.request,
                reason=cast("FinishReason", answer.finish_reason),
                text="" if answer.token_ids else answer.text,
                prompt_tokens=self._prompt,
                completion_tokens=self._tokens,
                prefill_s=first - self._started_at,
                decode_s=now - first,
            )
        )
        return True
