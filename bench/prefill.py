"""Remote prefill against the prefill engine alone, by prompt length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bench.nodes import LocalNode
from bench.rounds import Rounds, warm_up

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
    warm_up(decode, model)
    rows: list[PrefillRow] = []
    for index, prompt in enumerate(prompts):
        measured = Rounds(prefill, decode, model)
        for turn in range(rounds):
            tell(f"prompt {index + 1} of {len(prompts)}, round {turn + 1} of {rounds}")
            measured.measure(f"Length {index}, copy {turn}.\n\n{prompt}")
        rows.append(_row(measured))
    return PrefillReport(model=model, rounds=rounds, rows=rows)


def _row(measured: Rounds) -> PrefillRow:
    return PrefillRow(
        prompt_tokens=measured.prompt_tokens,
        ttft_s=measured.ttft_s,
        engine_prefill_s=measured.engine_prefill_s,
        rest_s=measured.median_of(lambda each: (each.ttft_ms - each.prefill_ms) / 1e3),
        transfer_s=measured.median_of(lambda each: each.transfer_ms / 1e3),
        hidden_fraction=measured.hidden_fraction,
        bytes=measured.reports[-1].bytes,
        overhead=measured.overhead,
    )
