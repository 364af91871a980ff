"""`baton bench prefill` with real engines and short prompts."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from bench.namespaces import NamespacesUnavailable
from bench.nodes import LocalNode, start_pair
from bench.prefill import measure_prefill, prompt_of, words_for
from tests.support.api import MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

TEXT = " ".join(f"The lamp of lighthouse {number} was lit at dusk." for number in range(40))
KV_BYTES = 30 * 2 * 3 * 64 * 2
"""Of one token in SmolLM2-135M's cache."""


def test_prompts_get_the_length_that_was_asked_for(pair: tuple[LocalNode, LocalNode]):
    prefill, decode = pair
    words = words_for(prefill, MODEL, TEXT, (200, 500))
    prompts = [prompt_of(TEXT, count) for count in words]
    report = measure_prefill(prefill, decode, MODEL, prompts, rounds=1)
    assert [row.prompt_tokens for row in report.rows] == pytest.approx([200, 500], rel=0.2)
    for row in report.rows:
        assert row.raw_bytes == row.bytes == pytest.approx(row.prompt_tokens * KV_BYTES, rel=0.05)
        assert row.codec == "raw"
        assert row.ttft_s > row.engine_prefill_s > 0
        assert row.ttft_s > row.decode_step_s > 0
        assert row.overhead == pytest.approx(
            row.ttft_s / (row.engine_prefill_s + row.decode_step_s), rel=1e-6
        )
        # On loopback the ideal sends in no time.
        assert row.over_ideal == row.overhead
        assert 0 <= row.hidden_fraction <= 1


@pytest.mark.soak
def test_a_link_slower_than_the_computation(smollm2_path: Path):
    rate = 5.0
    try:
        with start_pair(MODEL, f"test-{secrets.token_hex(3)}", link_mb_per_s=rate) as nodes:
            (words,) = words_for(nodes[0], MODEL, TEXT, (1000,))
            prompts = [prompt_of(TEXT, words)]
            report = measure_prefill(*nodes, MODEL, prompts, rounds=1, link_mb_per_s=rate)
    except NamespacesUnavailable as error:
        pytest.skip(str(error))
    (row,) = report.rows
    assert row.ideal_s == pytest.approx(row.bytes / 1e6 / rate + row.decode_step_s, rel=1e-6)
    assert row.ideal_s > row.engine_prefill_s + row.decode_step_s
    assert 0.9 < row.over_ideal < 3
