"""Machines that are switched on at once are one cluster, whatever addresses they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from statistics import median
from time import time

import pytest

from tests.support.netns import network
from tests.support.nodes import NodeProcess
from tests.support.toy_cluster import agreed, toy_cluster

pytestmark = pytest.mark.e2e

NODES = 5
MILESTONES = {
    "up": "listening at",
    "announced": "announced over mDNS",
    "connected": "connected to",
    "greeted": "has joined",
    "elected": "the master is",
}
"""What a node logs on its way; the last such line of the slowest node counts."""

Tell = Callable[[str], None]


def reached(nodes: Iterable[NodeProcess], text: str, started: float) -> float:
    """Return after how many seconds the last node first had logged as much as it ever did."""
    times = [
        datetime.fromisoformat(line.split(" | ")[0].strip()).timestamp()
        for each in nodes
        for line in each.log.splitlines()
        if text in line
    ]
    return max(times) - started


@pytest.mark.parametrize(
    ("addresses", "rounds"),
    [
        ("IPv4", 1),
        ("IPv6 link-local", 1),
        *(
            pytest.param(addresses, 10, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])
            for addresses in ("IPv4", "IPv4 and a default route", "IPv6 link-local")
        ),
    ],
)
async def test_five_machines_are_one_cluster(
    tmp_path: Path, addresses: str, rounds: int, tell: Tell
):
    table: list[dict[str, float]] = []
    for number in range(rounds):
        with network(NODES, ipv4=addresses != "IPv6 link-local") as cables:
            if "default route" in addresses:
                for index in range(NODES):
                    cables.run(index, "ip", "route", "add", "default", "via", "10.77.0.254")
            async with toy_cluster(cables, tmp_path / str(number), NODES) as cluster:
                # The last of them has just been started.
                started = time()
                whole = await cluster.wait_for(lambda: agreed(cluster.nodes), 60)
                reply = await cluster.ask(3, "what is it")
                assert reply.right, reply
                assert len({each["from"] for each in (await cluster.status(0))["links"]}) == NODES
                row = {
                    name: reached(cluster.nodes, text, started) for name, text in MILESTONES.items()
                }
                table.append(row | {"agreed, models ready": whole})
    times = ", ".join(f"{name} {median(row[name] for row in table):.2f}" for name in table[0])
    tell(f"{NODES} nodes, {addresses}, seconds after the last start (median of {rounds}): {times}")
    assert rounds == 1 or median(row["elected"] for row in table) < 5
