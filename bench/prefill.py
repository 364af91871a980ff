"""Remote prefill against the prefill engine alone, by prompt length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bench.client import measure_engine
from bench.nodes import LocalNode
from bench.rounds import Rounds, warm_up

__all__ = ["PrefillReport", "PrefillRow", "measure_prefill", "prompt_of", "words_for"]

_ANSWER_TOKENS: Final = 6
"""Enough to time a few decode steps."""


class PrefillRow(msgspec.Struct):
    """Medians over the rounds of one prompt length."""

    prompt_tokens: int
    ttft_s: float
    engine_prefill_s: float
    """What the prefill engine needs for the same prompt when nothing is handed off."""
    decode_step_s: float
    """What the decode engine needs for one token after such a prompt, from one to the next."""
    rest_s: float
    """Time to first token less the time in which the prompt was computed: the request's way there,
    what arrived later than it was computed, and the first decode step."""
    transfer_s: float
    """From the first chunk's arrival to the last one's."""
    hidden_fraction: float
    """Of the transfer, the part during which the prompt was still computed."""
    bytes: int
    raw_bytes: int
    codec: str | None
    overhead: float
    """Median over the rounds of time to first token over what the prefill engine needed alone in
    that round and a decode step."""
    ideal_s: float
    """The longer of computing and sending, and a decode step: sending takes no time on loopback."""
    over_ideal: float
    """Median over the rounds of time to first token over that round's ideal."""


class PrefillReport(msgspec.Struct):
    """What `baton bench prefill --json` prints."""

    model: str
    rounds: int
    rows: list[PrefillRow]
    link_mb_per_s: float | None = None
    """Of the link between the nodes; None on loopback."""


def prompt_of(text: str, words: int) -> str:
    """Return the first `words` words of `text`, which is repeated as often as that takes."""
    have = text.split()
    return " ".join((have * (words // len(have) + 1))[:words])


def words_for(prefill: LocalNode, model: str, text: str, tokens: Sequence[int]) -> list[int]:
    """Return how many words of `text`, as in `prompt_of`, make prompts of about so many tokens.

    Raises:
        BenchError: the node answered with an error.
    """
    words = len(text.split())
    with prefill.reach():
        counted, _ = measure_engine(prefill.api, model, prompt_of(text, words))
    return [max(1, round(count * words / counted)) for count in tokens]


def measure_prefill(
    prefill: LocalNode,
    decode: LocalNode,
    model: str,
    prompts: Sequence[str],
    *,
    rounds: int,
    link_mb_per_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> PrefillReport:
    """Measure each prompt `rounds` times, the prefill engine alone and the hand-off by turns.

    Args:
        prefill: the node whose engine reads the prompts.
        decode: the node that is asked.
        model: which both have loaded.
        prompts: what to ask.
        rounds: of which medians are reported.
        link_mb_per_s: of the link between the nodes, if it has a rate.
        tell: told in words what is being done.

    Raises:
        BenchError: a node answered with an error, or not long enough to time a decode step.
    """
    tell("warming up")
    warm_up(decode, model)
    rows: list[PrefillRow] = []
    for index, prompt in enumerate(prompts):
        measured = Rounds(prefill, decode, model)
        for turn in range(rounds):
            tell(f"prompt {index + 1} of {len(prompts)}, round {turn + 1} of {rounds}")
            text = f"Length {index}, copy {turn}.\n\n{prompt}"
            measured.measure(text, max_tokens=_ANSWER_TOKENS)
        rows.append(_row(measured, link_mb_per_s))
    return PrefillReport(model=model, rounds=rounds, rows=rows, link_mb_per_s=link_mb_per_s)


def _row(measured: Rounds, link_mb_per_s: float | None) -> PrefillRow:
    step = measured.decode_step_s

    def ideal(compute_s: float, sent_bytes: float) -> float:
        sending_s = 0.0 if link_mb_per_s is None else sent_bytes / 1e6 / link_mb_per_s
        return max(compute_s, sending_s) + step

    last = measured.reports[-1]
    return PrefillRow(
        prompt_tokens=measured.prompt_tokens,
        ttft_s=measured.ttft_s,
        engine_prefill_s=measured.engine_prefill_s,
        decode_step_s=step,
        rest_s=measured.median_of(lambda each: (each.ttft_ms - each.prefill_ms) / 1e3),
        transfer_s=measured.median_of(lambda each: each.transfer_ms / 1e3),
        hidden_fraction=measured.hidden_fraction,
        bytes=last.bytes,
        raw_bytes=last.raw_bytes,
        codec=last.codec,
        overhead=measured.over(lambda alone, _: alone + step),
        ideal_s=ideal(measured.engine_prefill_s, last.bytes),
        over_ideal=measured.over(lambda alone, report: ideal(alone, report.bytes)),
    )
