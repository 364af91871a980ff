"""How a cluster forms, idles and replaces its master, by the number of its nodes: simulated.

The nodes' state machines are the real ones; the network and the clock are those of
`bench.simulation`. `python -m bench.cluster --json` prints one JSON document.
"""

from __future__ import annotations

import argparse
import random
from functools import partial
from statistics import median
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench.simulation.cluster import SimulatedCluster

__all__ = ["SIZES", "ClusterReport", "ClusterRow", "measure"]

SIZES: Final = (2, 5, 10, 20, 50, 100)
_START_WITHIN_S: Final = 1.0
_SETTLE_S: Final = 10.0
_IDLE_S: Final = 20.0
_LIMIT_S: Final = 60.0


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds for one size. Seconds are simulated ones."""

    nodes: int
    whole_s: float
    """From the last start until every node sees all of them and follows the one master."""
    replaced_s: float
    """From the death of the master until every node follows another and has missed it."""
    messages_per_s: float
    """Gossip that one idle node sends, duplicates included; as many reach it."""
    bytes_per_s: float
    cluster_messages_per_s: float
    """The same of all nodes together."""
    messages_per_s_and_member: float
    """What one node sends, by the number of nodes: constant if traffic grows linearly."""
    heartbeats_per_s: float
    """Over a node's links, beside the gossip: 16 bytes there and back."""
    elections: int
    """The most that any round needed to form: 1 unless claims crossed."""


class ClusterReport(msgspec.Struct, frozen=True):
    """What `python -m bench.cluster --json` prints."""

    rounds: int
    rows: list[ClusterRow]


class _Round(msgspec.Struct):
    whole_s: float
    replaced_s: float
    messages: float
    bytes: float
    elections: int


def measure(sizes: tuple[int, ...] = SIZES, rounds: int = 5) -> ClusterReport:
    """Simulate clusters whose nodes start within a second of each other.

    Args:
        sizes: numbers of nodes, each at least 2.
        rounds: simulations of each size, from different seeds.

    Raises:
        RuntimeError: a cluster did not form, or replace its master, within a minute.
    """
    rows: list[ClusterRow] = []
    for size in sizes:
        each = [_simulate(size, seed) for seed in range(rounds)]
        messages = median(one.messages for one in each)
        rows.append(
            ClusterRow(
                nodes=size,
                whole_s=round(median(one.whole_s for one in each), 2),
                replaced_s=round(median(one.replaced_s for one in each), 2),
                messages_per_s=round(messages / size, 2),
                bytes_per_s=round(median(one.bytes for one in each) / size),
                cluster_messages_per_s=round(messages, 1),
                messages_per_s_and_member=round(messages / size**2, 3),
                heartbeats_per_s=size - 1,
                elections=max(one.elections for one in each),
            )
        )
    return ClusterReport(rounds, rows)


def _simulate(size: int, seed: int) -> _Round:
    rng = random.Random(f"{size} {seed}")
    cluster = SimulatedCluster(size, rng, skewed=True)
    starts = [rng.uniform(0.0, _START_WITHIN_S) for _ in range(size)]
    for index, at in enumerate(starts):
        cluster.clock.at(at, partial(cluster.start, index))
    cluster.clock.run_until(max(starts))
    whole_s = cluster.run_until_agreed(_LIMIT_S)
    elections = len(cluster.masters)
    cluster.clock.run_until(cluster.clock.now + _SETTLE_S)
    cluster.mesh.messages.clear()
    cluster.mesh.sent_bytes.clear()
    cluster.clock.run_until(cluster.clock.now + _IDLE_S)
    messages, sent = (
        cluster.mesh.messages.total() / _IDLE_S,
        cluster.mesh.sent_bytes.total() / _IDLE_S,
    )
    master = cluster.master()
    if whole_s is None or master is None:
        raise RuntimeError(f"{size} nodes did not become one cluster in {_LIMIT_S:g} s")
    cluster.kill(master.index)
    replaced_s = cluster.run_until_agreed(_LIMIT_S)
    if replaced_s is None:
        raise RuntimeError(f"{size} nodes did not replace their master in {_LIMIT_S:g} s")
    return _Round(whole_s, replaced_s, messages, sent, elections)


def _table(report: ClusterReport) -> Table:
    table = Table(title=f"Simulated clusters, medians of {report.rounds} rounds")
    for name in (
        "nodes",
        "whole after",
        "new master",
        "msgs/s per node",
        "kB/s per node",
        "msgs/s in all",
        "per node and member",
        "link beats/s",
    ):
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(
            str(row.nodes),
            f"{row.whole_s:.2f} s",
            f"{row.replaced_s:.2f} s",
            f"{row.messages_per_s:.1f}",
            f"{row.bytes_per_s / 1000:.1f}",
            f"{row.cluster_messages_per_s:.0f}",
            f"{row.messages_per_s_and_member:.2f}",
            f"{row.heartbeats_per_s:.0f}",
        )
    return table


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if min(arguments.nodes) < 2 or arguments.rounds < 1:
        parser.error("a cluster has 2 nodes or more, and there is 1 round or more")
    report = measure(tuple(arguments.nodes), arguments.rounds)
    if arguments.json:
        print(msgspec.json.encode(report).decode())
    else:
        Console().print(_table(report))


if __name__ == "__main__":
    _main()
