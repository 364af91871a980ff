"""What `baton bench prefill` makes of a few rounds."""

from pathlib import Path
from typing import cast

import pytest

from bench.client import BenchError, Report, TimedAnswer, Tokens
from bench.nodes import LocalNode
from bench.prefill import prompt_of
from bench.rounds import Rounds

NOBODY = cast("LocalNode", Path())


def answer(ttft_s: float, step_s: float | None, sent: int = 10_000_000) -> TimedAnswer:
    report = Report(
        prefill="remote",
        reason="",
        tokens=Tokens(100, 0, 0, 100),
        bytes=sent,
        raw_bytes=sent,
        ttft_ms=ttft_s * 1000,
        prefill_ms=500.0,
        transfer_ms=400.0,
        hidden_ms=300.0,
    )
    return TimedAnswer("text", ttft_s, ttft_s + 1, step_s, report)


def test_ratios_are_taken_round_by_round():
    answers = [answer(2.0, 0.1), answer(4.0, None), answer(9.0, 0.3)]
    rounds = Rounds(NOBODY, NOBODY, "m", alone=[1.0, 4.0, 3.0], answers=answers)
    assert rounds.overhead == 2.0
    assert rounds.decode_step_s == pytest.approx(0.2)
    assert rounds.over(lambda alone, report: alone + report.bytes / 1e7) == 1.0
    assert rounds.hidden_fraction == pytest.approx(0.75)


def test_answers_of_one_token_time_no_step():
    rounds = Rounds(NOBODY, NOBODY, "m", alone=[1.0], answers=[answer(2.0, None)])
    with pytest.raises(BenchError, match="no decode step"):
        _ = rounds.decode_step_s


def test_a_prompt_repeats_its_text():
    assert prompt_of("a b c", 2) == "a b"
    assert prompt_of("a b c", 7) == "a b c a b c a"
