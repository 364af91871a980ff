"""A cable is pulled in the middle of a prefill, and there is another one."""

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.netns import network
from tests.support.toy_cluster import Reply, ToyCluster, toy_cluster

pytestmark = pytest.mark.e2e

PREFILL, DECODE = 0, 1
CLASSES = ("--class", "net0=ethernet", "--class", "net1=thunderbolt")
PROMPT = "the quick brown fox jumps over the lazy dog " * 200
"""1,800 tokens: 57 steps of the toy engine."""
STEP_S = "0.06"


def instances(cluster: ToyCluster) -> list[dict[str, Any]]:
    """Return the instances that the decode node sees ready."""
    status = cluster[DECODE].status or {"nodes": []}
    return [
        instance
        for each in status["nodes"]
        for instance in each["instances"]
        if instance["state"] == "ready"
    ]


def used(cluster: ToyCluster) -> set[str]:
    return {link["interface"] for node in cluster.nodes for link in node.links if link["in_use"]}


@pytest.mark.parametrize("pulled_at", [PREFILL, DECODE])
async def test_the_transfer_goes_on_over_the_other_cable(tmp_path: Path, pulled_at: int):
    with network(2, bridges=2) as cables:
        async with toy_cluster(cables, tmp_path, 0, *CLASSES) as cluster:
            await cluster.start(PREFILL, "--role", "prefill", "--step-s", STEP_S)
            await cluster.start(DECODE, "--role", "decode", "--step-s", STEP_S)
            await cluster.wait_for(lambda: len(instances(cluster)) == 2)
            await cluster.wait_for(lambda: used(cluster) == {"net1"})
            await cluster.wait_for(lambda: all(len(each.links) == 2 for each in cluster.nodes))

            replies: list[Reply] = []

            async def ask() -> None:
                replies.append(await cluster.ask(DECODE, PROMPT, prefill="remote"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await cluster.wait_for(
                    lambda: any(
                        each["load"] for each in instances(cluster) if each["role"] == "prefill"
                    )
                )
                # Into the transfer, of which there are seconds left.
                await trio.sleep(0.5)
                cables.set_cable(pulled_at, plugged=False, bridge=1)

            (reply,) = replies
            assert reply.right, f"{reply}\n{cluster[DECODE].log}"
            assert reply.report["prefill"] == "remote", reply.report
            assert "net0" in reply.report["route"]
            assert "thunderbolt net1" in reply.report["reason"]
            assert "was lost at token" in reply.report["reason"]
            tokens = reply.report["tokens"]
            sent_once = (tokens["prompt"] - 1) * 192
            assert sent_once <= reply.report["raw_bytes"] < 1.3 * sent_once

            again = await cluster.ask(DECODE, f"again {PROMPT[:2000]}", prefill="remote")
            assert again.right
            assert again.report["prefill"] == "remote"
            assert "net0" in again.report["route"]
            assert "lost" not in again.report["reason"]
            assert "is suspect" not in cluster[PREFILL].log + cluster[DECODE].log
