"""One prompt, prefilled by another node and by the decode node itself: the times side by side."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import msgspec

from bench.client import TimedAnswer, measure_engine, timed_chat
from bench.nodes import LocalNode

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
    timed_chat(decode.api, model, "Say hello. " * 64, prefill="remote", max_tokens=4)
    tokens, alone, remote = 0, list[float](), list[TimedAnswer]()
    for index in range(rounds):
        tell(f"remote prefill, round {index + 1} of {rounds}")
        text = prompt if index == 0 else f"Copy {index + 1}.\n\n{prompt}"
        counted, seconds = measure_engine(prefill.api, model, text)
        alone.append(seconds)
        # The answer of the first round is shown; of the others only the first token is timed.
        limit = 48 if index == 0 else 1
        remote.append(timed_chat(decode.api, model, text, prefill="remote", max_tokens=limit))
        tokens = tokens or counted
    tell("local prefill (this is the slow one)")
    local = timed_chat(decode.api, model, prompt, prefill="local")
    ttft, engine = median(answer.ttft_s for answer in remote), median(alone)
    first = remote[0].report
    return Handoff(
        model=model,
        prompt_tokens=tokens,
        answer=remote[0].text,
        answers_equal=remote[0].text == local.text,
        local=Local(ttft_s=local.ttft_s, prefill_s=local.report.prefill_ms / 1000),
        remote=Remote(
            ttft_s=ttft,
            prefill_s=median(answer.report.prefill_ms for answer in remote) / 1000,
            engine_prefill_s=engine,
            bytes=first.bytes,
            mb_per_s=median(
                answer.report.bytes / 1000 / max(answer.report.transfer_ms, 0.001)
                for answer in remote
            ),
            hidden_fraction=median(
                answer.report.hidden_ms / max(answer.report.transfer_ms, 0.001) for answer in remote
            ),
            codec=first.codec,
            ratio=first.raw_bytes / max(first.bytes, 1),
        ),
        speedup=local.ttft_s / ttft,
        overhead=median(
            answer.ttft_s / seconds for answer, seconds in zip(remote, alone, strict=True)
        ),
        rounds=rounds,
    )
