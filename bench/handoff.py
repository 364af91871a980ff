"""One prompt, prefilled by another node and by the decode node itself: the times side by side."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bench.client import timed_chat
from bench.nodes import LocalNode
from bench.rounds import Rounds, warm_up

__all__ = ["Handoff", "Local", "Remote", "measure_handoff"]


class Local(msgspec.Struct):
    """The decode engine reads the prompt itself."""

    ttft_s: float
    prefill_s: float


class Remote(msgspec.Struct):
    """The prefill engine reads the prompt; medians over the rounds."""

    ttft_s: float
    prefill_s: float
    """Compute time of the prefill engine while it streamed."""
    engine_prefill_s: float
    """What the prefill engine needs for the same prompt when nothing is handed off."""
    bytes: int
    mb_per_s: float
    hidden_fraction: float
    """Of the time that the cache was on its way, the part in which it was still computed."""
    codec: str | None
    ratio: float
    """Raw bytes over bytes sent."""


class Handoff(msgspec.Struct):
    """What `baton demo --json` prints."""

    model: str
    prompt_tokens: int
    answer: str
    answers_equal: bool
    local: Local
    remote: Remote
    speedup: float
    overhead: float
    """Time to first token with remote prefill, over what the prefill engine alone needs: the median
    of the rounds' ratios, since both halves of a round meet the same load on this machine."""
    rounds: int


def measure_handoff(
    prefill: LocalNode,
    decode: LocalNode,
    model: str,
    prompt: str,
    *,
    rounds: int = 5,
    tell: Callable[[str], None] = lambda _: None,
) -> Handoff:
    """Measure both ways to read `prompt`, greedy.

    Each round measures the prefill engine alone and then the whole hand-off. Rounds after the
    first put a number before the prompt, or the prefill engine's prefix cache would answer.

    Raises:
        BenchError: a node answered with an error.
    """
    tell("warming up")
    warm_up(decode, model)
    measured = Rounds(prefill, decode, model)
    for index in range(rounds):
        tell(f"remote prefill, round {index + 1} of {rounds}")
        # The answer of the first round is shown; of the others only the first token is timed.
        if index == 0:
            measured.measure(prompt, max_tokens=48)
        else:
            measured.measure(f"Copy {index + 1}.\n\n{prompt}")
    tell("local prefill (this is the slow one)")
    local = timed_chat(decode.api, model, prompt, prefill="local")
    answer, first = measured.answers[0].text, measured.reports[0]
    return Handoff(
        model=model,
        prompt_tokens=measured.prompt_tokens,
        answer=answer,
        answers_equal=answer == local.text,
        local=Local(ttft_s=local.ttft_s, prefill_s=local.report.prefill_ms / 1000),
        remote=Remote(
            ttft_s=measured.ttft_s,
            prefill_s=measured.median_of(lambda each: each.prefill_ms) / 1000,
            engine_prefill_s=measured.engine_prefill_s,
            bytes=first.bytes,
            mb_per_s=measured.median_of(
                lambda each: each.bytes / 1000 / max(each.transfer_ms, 0.001)
            ),
            hidden_fraction=measured.hidden_fraction,
            codec=first.codec,
            ratio=first.raw_bytes / max(first.bytes, 1),
        ),
        speedup=local.ttft_s / measured.ttft_s,
        overhead=measured.overhead,
        rounds=rounds,
    )
