"""Goodput over links of a known rate: two network namespaces, shaped by tc's token bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Final

import msgspec

from bench.kv.data import ENCODERS, tokens_for
from bench.kv.measure import KvRow, row_of
from bench.kv.pair import Client, Server, Transfer, move, start_pairs
from bench.kv.transfer import Case
from bench.namespaces import Network, network

__all__ = ["LINK_CASES", "LinkReport", "LinksReport", "measure_links"]

LINK_CASES: Final[tuple[Case, ...]] = ("baton", "baton_planes", "plain_tcp")
"""`plain_tcp` tells what the shaper lets through."""
_MOST_S: Final = 2.5
"""No transfer is to take much longer at the rate of the link: slow ones get smaller caches."""
_WARM_UP_S: Final = 0.5


class LinkReport(msgspec.Struct):
    """One rate."""

    link_mb_per_s: float
    """10^6 bytes of ethernet frames a second, in which TCP/IP has its share: 4.5% of frames of
    1,514 bytes."""
    rows: list[KvRow]
    shares: dict[str, float]
    """Goodput of each case, raw bytes, over the rate of the link."""


class LinksReport(msgspec.Struct):
    """What `baton bench kv --link RATE --json` prints."""

    links: list[LinkReport]


def measure_links(
    rates: Sequence[float],
    *,
    nbytes: int,
    runs: int = 5,
    cases: Sequence[Case] = LINK_CASES,
    threads: int = ENCODERS,
    tell: Callable[[str], None] = lambda _: None,
) -> LinksReport:
    """Measure each case over a link of each rate, by turns.

    Args:
        rates: of links, in MB/s.
        nbytes: of a cache, at most.
        runs: of which medians are reported.
        cases: of `LINK_CASES`.
        threads: that encode chunks.
        tell: told in words what is being done.

    Raises:
        BenchError: a transfer failed.
        NamespacesUnavailable: that needs Linux, root and iproute2.
        ValueError: a rate is not positive.
    """
    if min(rates) <= 0:
        raise ValueError("a link has a rate above 0")
    with ExitStack() as stack:
        cables = stack.enter_context(network(2, Network))
        tell(f"starting {', '.join(cases)}")
        pairs = start_pairs(
            stack,
            cases,
            ip=cables.address(0),
            threads=threads,
            server_prefix=cables.prefix(0),
            client_prefix=cables.prefix(1),
        )
        return LinksReport([_measure(cables, pairs, rate, nbytes, runs, tell) for rate in rates])


def _measure(
    cables: Network,
    pairs: dict[Case, tuple[Server, Client]],
    rate: float,
    nbytes: int,
    runs: int,
    tell: Callable[[str], None],
) -> LinkReport:
    for index in range(2):
        cables.set_rate(index, rate * 8)
    tokens = tokens_for(min(nbytes, round(rate * 1e6 * _MOST_S)))
    transfers: dict[Case, list[Transfer]] = {case: [] for case in pairs}
    for server, client in pairs.values():
        move(server, client, tokens_for(min(nbytes, round(rate * 1e6 * _WARM_UP_S))))
    for turn in range(runs):
        for case, (server, client) in pairs.items():
            tell(f"{rate:g} MB/s, round {turn + 1} of {runs}: {case}")
            transfers[case].append(move(server, client, tokens))
    return LinkReport(
        link_mb_per_s=rate,
        rows=[row_of(case, each) for case, each in transfers.items()],
        shares={
            case: round(median(one.fetched.bytes_per_s for one in each) / rate / 1e6, 3)
            for case, each in transfers.items()
        },
    )
