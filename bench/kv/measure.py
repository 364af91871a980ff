"""Goodput of `/kv-prefill/1` between two processes, and of other ways to move the same chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Final

import msgspec

from bench.kv.data import ENCODERS, tokens_for
from bench.kv.pair import Transfer, move, start_pairs
from bench.kv.transfer import CASES, Case

__all__ = ["KvReport", "KvRow", "measure_kv", "row_of"]

_STOCK_SHARE: Final = 8
"""Stock py-libp2p is given one part in so many of the bytes: it needs as much longer for each."""
_WARM_UP: Final = 64 << 20


class KvRow(msgspec.Struct):
    """Medians of one way."""

    case: Case
    mb_per_s: float
    """10^6 raw bytes a second, from asking to the last chunk, checked."""
    cpu_s_per_gb_send: float
    """Processor seconds of the whole process for 10^9 raw bytes."""
    cpu_s_per_gb_receive: float
    bytes: int
    """Raw, of one transfer."""
    runs: int
    ratio: float
    """Raw bytes over bytes sent."""
    peak_growth_mb_send: float
    """Resident memory of the process at its peak, over what it was before the first transfer."""
    peak_growth_mb_receive: float
    mb_per_s_range: tuple[float, float]
    """Slowest and fastest run."""


class KvReport(msgspec.Struct):
    """What `baton bench kv --json` prints."""

    rows: list[KvRow]
    ratios: dict[str, float]
    """Goodput of `baton` over each of the others', of medians."""


def measure_kv(
    *,
    nbytes: int,
    runs: int = 5,
    cases: Sequence[Case] = tuple(CASES),
    threads: int = ENCODERS,
    tell: Callable[[str], None] = lambda _: None,
) -> KvReport:
    """Measure each case `runs` times, by turns, so that a busy machine slows all of them alike.

    Args:
        nbytes: of a cache, about: it is a whole number of tokens.
        runs: of which medians are reported.
        cases: what to measure.
        threads: that encode chunks.
        tell: told in words what is being done.

    Raises:
        BenchError: a transfer failed.
        ValueError: the cache would be empty.
    """
    transfers: dict[Case, list[Transfer]] = {case: [] for case in cases}
    tell(f"starting {', '.join(cases)}")
    with ExitStack() as stack:
        pairs = start_pairs(stack, cases, threads=threads)
        for case, (server, client) in pairs.items():
            move(server, client, _tokens(case, min(nbytes, _WARM_UP)))
        for turn in range(runs):
            for case, (server, client) in pairs.items():
                tell(f"round {turn + 1} of {runs}: {case}")
                transfers[case].append(move(server, client, _tokens(case, nbytes)))
    rows = [row_of(case, transfers[case]) for case in cases]
    rates = {row.case: row.mb_per_s for row in rows}
    others = [case for case in rates if case != "baton" and "baton" in rates]
    return KvReport(
        rows=rows, ratios={case: round(rates["baton"] / rates[case], 3) for case in others}
    )


def row_of(case: Case, transfers: Sequence[Transfer]) -> KvRow:
    """Return the medians of some transfers."""
    first = transfers[0].fetched
    gigabytes = first.raw_bytes / 1e9
    rates = [each.fetched.bytes_per_s / 1e6 for each in transfers]
    return KvRow(
        case=case,
        mb_per_s=round(median(rates), 1),
        cpu_s_per_gb_send=round(median(each.sender.cpu_s for each in transfers) / gigabytes, 3),
        cpu_s_per_gb_receive=round(
            median(each.receiver.cpu_s for each in transfers) / gigabytes, 3
        ),
        bytes=first.raw_bytes,
        runs=len(transfers),
        ratio=round(first.raw_bytes / first.sent_bytes, 3),
        peak_growth_mb_send=round(max(each.sender.peak_growth for each in transfers) / 1e6, 1),
        peak_growth_mb_receive=round(max(each.receiver.peak_growth for each in transfers) / 1e6, 1),
        mb_per_s_range=(round(min(rates), 1), round(max(rates), 1)),
    )


def _tokens(case: Case, nbytes: int) -> int:
    tokens = tokens_for(nbytes)
    return max(1, tokens // _STOCK_SHARE) if case == "stock_libp2p" else tokens
