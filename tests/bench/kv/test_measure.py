"""Every way to move a cache, between real processes, with caches of a few megabytes."""

import signal
from contextlib import ExitStack

import pytest

from bench.client import BenchError
from bench.kv.data import BYTES_PER_TOKEN
from bench.kv.measure import measure_kv
from bench.kv.pair import Client, Server, move, start_clients, start_pairs, start_server
from bench.kv.transfer import CASES

pytestmark = pytest.mark.e2e

SIZE = 40 * BYTES_PER_TOKEN


def test_each_case_moves_the_whole_cache():
    said: list[str] = []
    report = measure_kv(nbytes=SIZE, runs=2, tell=said.append)
    assert [row.case for row in report.rows] == list(CASES)
    assert report.ratios.keys() == CASES.keys() - {"baton"}
    assert "round 2 of 2: baton" in said
    for row in report.rows:
        assert row.bytes == (SIZE // 8 if row.case == "stock_libp2p" else SIZE)
        assert row.runs == 2
        assert row.mb_per_s_range[0] <= row.mb_per_s <= row.mb_per_s_range[1]
        assert row.cpu_s_per_gb_send > 0
        assert row.cpu_s_per_gb_receive > 0
        assert (row.ratio > 1.4) == (row.case == "baton_planes")
    rates = {row.case: row.mb_per_s for row in report.rows}
    assert report.ratios["tls"] == pytest.approx(rates["baton"] / rates["tls"], rel=0.01)


def test_memory_at_its_peak_is_seen():
    with start_server("plain_tcp") as server, start_clients(server) as (client,):
        # The reader of plain TCP has one chunk in memory at a time.
        growth = move(server, client, 1024).receiver.peak_growth
        assert 4 * 1024**2 <= growth < 32 * 1024**2


@pytest.fixture
def pair():
    with ExitStack() as stack:
        yield start_pairs(stack, ["baton"])["baton"]


def test_a_server_that_is_killed_fails_the_measurement(pair: tuple[Server, Client]):
    server, client = pair
    server.signal(signal.SIGKILL)
    with pytest.raises(BenchError, match="worker has ended"):
        move(server, client, 40)


def test_a_client_that_is_killed_fails_the_measurement(pair: tuple[Server, Client]):
    server, client = pair
    client.signal(signal.SIGKILL)
    with pytest.raises(BenchError, match="worker has ended"):
        move(server, client, 40)
