"""A short measurement of a vLLM that has just been loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from engines.base import EngineError
from engines.vllm.handoff import Handoff

if TYPE_CHECKING:
    import numpy as np
    from vllm import LLMEngine

__all__ = ["Rates", "measure"]

PROMPT = 256
ANSWER = 8


class Rates(NamedTuple):
    """Tokens per second."""

    prefill: float
    decode: float


class _Probe:
    """A job that wants everything and keeps nothing: it only proves that every layer comes."""

    def __init__(self) -> None:
        self.failure: str | None = None

    def scheduled(self, computed: int, count: int) -> tuple[int, int]:
        return computed, computed + count

    def take(self, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]) -> None:
        pass

    def fail(self, reason: str) -> None:
        self.failure = reason


def measure(llm: LLMEngine, handoff: Handoff, max_context: int, vocab_size: int) -> Rates:
    """Prefill a prompt twice and decode a few tokens; the first prefill only warms up.

    Raises:
        EngineError: `unsupported`, if layers do not reach the connector.
    """
    prompt = min(PROMPT, max_context - 1)
    answer = min(ANSWER, max_context - prompt)
    tokens = [(7 * position + 1) % vocab_size for position in range(prompt)]
    rates = Rates(0.0, 0.0)
    for _ in range(2):
        rates = _measure_once(llm, handoff, tokens, answer)
    return rates


def _measure_once(llm: LLMEngine, handoff: Handoff, tokens: list[int], answer: int) -> Rates:
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=answer,
        min_tokens=answer,
        temperature=0.0,
        ignore_eos=True,
        detokenize=False,
        skip_reading_prefix_cache=True,
    )
    probe = _Probe()
    request_id = llm.add_request("probe", {"prompt_token_ids": tokens}, params)
    handoff.add(request_id, probe)
    began = time.perf_counter()
    first: float | None = None
    while llm.has_unfinished_requests():
        if llm.step() and first is None:
            first = time.perf_counter()
    ended = time.perf_counter()
    first = first or ended
    handoff.remove(request_id)
    if probe.failure is not None:
        raise EngineError("unsupported", f"vLLM does not hand out every layer: {probe.failure}")
    decode = (answer - 1) / (ended - first) if answer > 1 else 0.0
    return Rates(prefill=len(tokens) / (first - began), decode=decode)
