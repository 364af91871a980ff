"""The arithmetic of the case on paper."""

import pytest

from bench.kv.data import BYTES_PER_TOKEN
from bench.paper import MEASURED, PUBLISHED, TEN_GBE, arrived_after, work_out

TOKENS = 8192
MEGABYTES = TOKENS * BYTES_PER_TOKEN / 1e6


def test_an_endless_link_adds_nothing():
    assert arrived_after(1.5, 1e12, TOKENS) == pytest.approx(1.5, rel=1e-6)


def test_a_slow_link_sends_from_the_first_layer_on():
    first_layer = 1.5 * 4096 / TOKENS / 32
    assert arrived_after(1.5, 100, TOKENS) == pytest.approx(first_layer + MEGABYTES / 100)


def test_a_fast_link_has_the_last_layer_of_the_last_step_left():
    # Its four chunks are ready at once, at the end.
    last = 4096 * BYTES_PER_TOKEN / 32 / 1e6
    assert arrived_after(1.5, 1000, TOKENS) == pytest.approx(1.5 + last / 1000)


def test_a_prompt_shorter_than_a_step():
    assert arrived_after(1.0, 1e12, 100) == pytest.approx(1.0)


def test_the_parts_add_up():
    report = work_out()
    for row in report.rows:
        assert row.total_s == pytest.approx(
            PUBLISHED.prefill_s + row.exposed_s + MEASURED.rest_s + PUBLISHED.decode_s
        )
        assert row.of_published == pytest.approx(row.total_s / 2.32)
        if row.prefill_to_beat_s:
            beaten = arrived_after(row.prefill_to_beat_s, row.mb_per_s, TOKENS)
            assert beaten + MEASURED.rest_s + PUBLISHED.decode_s == pytest.approx(2.32, abs=0.001)
    ways = {row.way: row for row in report.rows}
    assert ways["the link alone"].mb_per_s == pytest.approx(1177, abs=1)
    assert ways["stock_libp2p"].prefill_to_beat_s == 0
    assert max(ways, key=lambda way: ways[way].total_s) == "stock_libp2p"


def test_above_the_rate_that_hides_it_only_the_tail_is_exposed():
    report = work_out()
    tail = 4096 * BYTES_PER_TOKEN / 32 / 1e6
    above, below = report.mb_per_s_to_hide * 1.01, report.mb_per_s_to_hide * 0.95
    assert arrived_after(1.47, above, TOKENS) - 1.47 == pytest.approx(tail / above, rel=0.02)
    assert arrived_after(1.47, below, TOKENS) - 1.47 > 1.5 * tail / below


def test_no_way_is_faster_than_the_link():
    report = work_out(link_mb_per_s=100)
    assert [round(row.mb_per_s) for row in report.rows] == [100, 148, 100, 100]
    assert TEN_GBE < 1250
