"""Remote prefill against the prefill engine alone, by prompt length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from bench.client import TimedAnswer, measure_engine, timed_chat
from bench.nodes import LocalNode

__all__ = ["PrefillReport", "PrefillRow", "measure_prefill", "prompt_of"]


class PrefillRow(msgspec.Struct):
    """Medians over the rounds of one prompt length."""

    prompt_tokens: int
    ttft_s: float
    engine_prefill_s: float
    """What the prefill engine needs for the same prompt when nothing is handed off."""
    rest_s: float
    """Time to first token less the time in which the prompt was computed: the request's way there,
    what arrived later than it was computed, and the first decode step."""
    transfer_s: float
    """From the first chunk's arrival to the last one's."""
    hidden_fraction: float
    """Of the transfer, the part during which the prompt was still computed."""
    bytes: int
    overhead: float
    """Median over the rounds of time to first token over the prefill engine's time alone."""


class PrefillReport(msgspec.Struct):
    """What `baton bench prefill --json` prints."""

    model: str
    rounds: int
    rows: list[PrefillRow]


def prompt_of(text: str, words: int) -> str:
    """Return the first `words` words of `text`, which is repeated as often as that takes."""
    have = text.split()
    return " ".join((have * (words // len(have) + 1))[:words])


def measure_prefill(
    prefill: LocalNode,
    decode: LocalNode,
    model: str,
    prompts: Sequence[str],
    *,
    rounds: int,
    tell: Callable[[str], None] = lambda _: None,
) -> PrefillReport:
    """Measure each prompt `rounds` times, the prefill engine alone and the hand-off by turns.

    Raises:
        BenchError: a node answered with an error.
    """
    tell("warming up")
    timed_chat(decode.api, model, "Say hello. " * 64, prefill="remote", max_tokens=1)
    rows: list[PrefillRow] = []
    for index, prompt in enumerate(prompts):
        tokens, alone, answers = 0, list[float](), list[TimedAnswer]()
        for turn in range(rounds):
            tell(f"prompt {index + 1} of {len(prompts)}, round {turn + 1} of {rounds}")
            # Nothing of it is in the prefill engine's prefix cache.
            text = f"Length {index}, copy {turn}.\n\n{prompt}"
            tokens, seconds = measure_engine(prefill.api, model, text)
            alone.append(seconds)
            answers.append(timed_chat(decode.api, model, text, prefill="remote", max_tokens=1))
        rows.append(_row(tokens, alone, answers))
    return PrefillReport(model=model, rounds=rounds, rows=rows)


def _row(tokens: int, alone: Sequence[float], answers: Sequence[TimedAnswer]) -> PrefillRow:
    reports = [answer.report for answer in answers]
    return PrefillRow(
        prompt_tokens=tokens,
        ttft_s=median(answer.ttft_s for answer in answers),
        engine_prefill_s=median(alone),
        rest_s=median((report.ttft_ms - report.prefill_ms) / 1e3 for report in reports),
        transfer_s=median(report.transfer_ms / 1e3 for report in reports),
        hidden_fraction=median(
            report.hidden_ms / max(report.transfer_ms, 0.001) for report in reports
        ),
        bytes=reports[-1].bytes,
        overhead=median(
            answer.ttft_s / engine for answer, engine in zip(answers, alone, strict=True)
        ),
    )
