"""Several prefills at once: one node sends caches of different sizes to as many others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec

from bench.kv.data import ENCODERS, tokens_for
from bench.kv.pair import Client, Server, move, start_clients, start_server
from bench.kv.transfer import CASES, Case, Fetched

__all__ = ["ConcurrentReport", "ConcurrentRow", "measure_concurrent", "share_of_first", "sizes"]

_WARM_UP: Final = 32 << 20


class ConcurrentRow(msgspec.Struct):
    """Medians of one of the transfers."""

    bytes: int
    mb_per_s: float
    first_chunk_s: float
    longest_wait_s: float
    """Between two chunks, or for the first."""
    share: float
    """What it got of all that had come when the first transfer was done, times their number: 1 is
    an equal share."""


class ConcurrentReport(msgspec.Struct):
    """What `baton bench kv --concurrent N --json` prints."""

    case: Case
    runs: int
    alone_mb_per_s: float
    """One transfer of as many bytes as all the others together."""
    together_mb_per_s: float
    """All bytes over the time from the first request to the last chunk of all."""
    ratio: float
    """Median over the runs of the one over the other."""
    rows: list[ConcurrentRow]


def sizes(nbytes: int, count: int) -> list[int]:
    """Divide `nbytes` into `count` parts as 1, 2, 3 and so on, the largest first."""
    whole = count * (count + 1) // 2
    return [max(1, nbytes * part // whole) for part in range(count, 0, -1)]


def share_of_first(transfers: Sequence[Fetched]) -> list[float]:
    """Return each one's part of what had come when the first was done, times their number."""
    done = min(each.arrivals[-1][0] for each in transfers)
    came = [sum(size for at, size in each.arrivals if at <= done) for each in transfers]
    return [part * len(transfers) / sum(came) for part in came]


def measure_concurrent(
    count: int,
    *,
    nbytes: int,
    runs: int = 5,
    case: Case = "baton",
    threads: int = ENCODERS,
    tell: Callable[[str], None] = lambda _: None,
) -> ConcurrentReport:
    """Move one cache, and then `count` that make as many bytes at once, `runs` times by turns.

    Args:
        count: of transfers at once, and of receiving processes.
        nbytes: of all of them, about.
        runs: of which medians are reported.
        case: how they are moved.
        threads: that encode chunks.
        tell: told in words what is being done.

    Raises:
        BenchError: a transfer failed.
        ValueError: a cache would be empty.
    """
    parts = [tokens_for(size) for size in sizes(nbytes, count)]
    alone: list[float] = []
    together: list[list[Fetched]] = []
    tell(f"starting {count + 1} nodes")
    with (
        start_server(case, threads=threads) as server,
        start_clients(server, count) as clients,
    ):
        for client in clients:
            move(server, client, tokens_for(min(nbytes, _WARM_UP)))
        for turn in range(runs):
            tell(f"round {turn + 1} of {runs}: one alone")
            first = clients[turn % count]
            alone.append(move(server, first, sum(parts)).fetched.bytes_per_s)
            tell(f"round {turn + 1} of {runs}: {count} at once")
            together.append(_at_once(server, clients, parts))
    rates = [_rate(each) for each in together]
    return ConcurrentReport(
        case=case,
        runs=runs,
        alone_mb_per_s=round(median(alone) / 1e6, 1),
        together_mb_per_s=round(median(rates) / 1e6, 1),
        ratio=round(median(b / a for a, b in zip(alone, rates, strict=True)), 3),
        rows=[_row(index, together) for index in range(count)],
    )


def _at_once(server: Server, clients: Sequence[Client], parts: Sequence[int]) -> list[Fetched]:
    for client, tokens in zip(clients, parts, strict=True):
        client.begin(tokens, CASES[server.case])
    return [client.end().fetched for client in clients]


def _rate(transfers: Sequence[Fetched]) -> float:
    began = min(each.began for each in transfers)
    ended = max(each.arrivals[-1][0] for each in transfers)
    return sum(each.raw_bytes for each in transfers) / (ended - began)


def _row(index: int, together: Sequence[Sequence[Fetched]]) -> ConcurrentRow:
    ours = [each[index] for each in together]
    return ConcurrentRow(
        bytes=ours[0].raw_bytes,
        mb_per_s=round(median(each.bytes_per_s for each in ours) / 1e6, 1),
        first_chunk_s=round(median(each.arrivals[0][0] - each.began for each in ours), 3),
        longest_wait_s=round(median(_longest_wait(each) for each in ours), 3),
        share=round(median(share_of_first(each)[index] for each in together), 3),
    )


def _longest_wait(fetched: Fetched) -> float:
    times = [fetched.began, *(at for at, _ in fetched.arrivals)]
    return max(after - before for before, after in pairwise(times))
