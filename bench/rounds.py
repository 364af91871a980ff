"""The prefill engine alone and the hand-off by turns, so that both meet the same load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.client import BenchError, Report, TimedAnswer, measure_engine, timed_chat
from bench.nodes import LocalNode

__all__ = ["Rounds", "warm_up"]


def warm_up(decode: LocalNode, model: str) -> None:
    """Have a prompt handed off once: the first is slower.

    Raises:
        BenchError: a node answered with an error.
    """
    with decode.reach():
        timed_chat(decode.api, model, "Say hello. " * 64, prefill="remote", max_tokens=4)


@dataclass
class Rounds:
    """Measurements of one prompt, and their medians."""

    prefill: LocalNode
    decode: LocalNode
    model: str
    prompt_tokens: int = 0
    """Of the first round."""
    alone: list[float] = field(default_factory=list)
    """Seconds that the prefill engine needs when nothing is handed off."""
    answers: list[TimedAnswer] = field(default_factory=list)
    """After remote prefill."""

    def measure(self, text: str, *, max_tokens: int = 1) -> None:
        """Measure a round; `text` must be in no prefix cache.

        Raises:
            BenchError: a node answered with an error.
        """
        with self.prefill.reach():
            tokens, seconds = measure_engine(self.prefill.api, self.model, text)
        self.prompt_tokens = self.prompt_tokens or tokens
        self.alone.append(seconds)
        with self.decode.reach():
            answer = timed_chat(
                self.decode.api, self.model, text, prefill="remote", max_tokens=max_tokens
            )
        self.answers.append(answer)

    @property
    def reports(self) -> Sequence[Report]:
        """The `x_baton` of each answer."""
        return [answer.report for answer in self.answers]

    @property
    def ttft_s(self) -> float:
        return median(answer.ttft_s for answer in self.answers)

    @property
    def engine_prefill_s(self) -> float:
        return median(self.alone)

    @property
    def decode_step_s(self) -> float:
        """A decode step after a prompt of this length.

        Raises:
            BenchError: every answer was of one token.
        """
        steps = [answer.step_s for answer in self.answers if answer.step_s is not None]
        if not steps:
            raise BenchError("no answer was longer than one token, so no decode step was timed")
        return median(steps)

    @property
    def hidden_fraction(self) -> float:
        """Of the time that the cache was on its way, the part in which it was still computed."""
        return self.median_of(lambda each: each.hidden_ms / max(each.transfer_ms, 0.001))

    @property
    def overhead(self) -> float:
        """Time to first token over the prefill engine's time alone, round by round."""
        return self.over(lambda alone, _: alone)

    def over(self, reference: Callable[[float, Report], float]) -> float:
        """Return the median, over the rounds, of the time to first token over a reference.

        Args:
            reference: of a round, in seconds, from what the prefill engine needed alone and the
                answer's report.
        """
        return median(
            answer.ttft_s / reference(seconds, answer.report)
            for answer, seconds in zip(self.answers, self.alone, strict=True)
        )

    def median_of(self, value: Callable[[Report], float]) -> float:
        """Return the median of a value over the reports."""
        return median(value(report) for report in self.reports)
