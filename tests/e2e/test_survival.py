"""What is left goes on: masters that are killed, networks that are cut, nodes that hang.

Whole nodes with toy engines, each in a network namespace. Seconds are measured and told, and
asserted only in the long form, which is for a machine that does nothing else.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import trio

from tests.support.netns import network
from tests.support.toy_cluster import ToyCluster, agreed, toy_cluster
from tests.support.traffic import Traffic, streams_begun, traffic

pytestmark = pytest.mark.e2e

NODES = 5
SLOW = ("--step-s", "0.1")
"""An answer takes a second: long enough to be killed in the middle of."""

Tell = Callable[[str], None]


def instances(cluster: ToyCluster) -> set[tuple[str, str]]:
    """Return peer id and instance id of what is ready, as the first node sees it."""
    nodes = cluster[0].status["nodes"] if cluster[0].status else []
    return {
        (node["peer_id"], instance["id"])
        for node in nodes
        for instance in node["instances"]
        if instance["state"] == "ready"
    }


async def kill_the_master(cluster: ToyCluster) -> tuple[float, Traffic]:
    """Kill it under load, and bring it back; return the seconds until there is another."""
    victim = cluster.index_of(cluster[0].master)
    peer_id, term = cluster[victim].peer_id, cluster[victim].term
    survivors = [index for index in range(NODES) if index != victim]
    rest = cluster.others(victim)
    async with streams_begun(cluster, survivors) as across, traffic(cluster, survivors) as asked:
        await cluster.kill(victim)
        seconds = await cluster.wait_for(lambda: agreed(rest) and rest[0].term > term)
        await cluster.wait_for(asked.going_on)
    assert all(reply.right for reply in across), across
    assert not asked.failures([peer_id]), asked.failures([peer_id])
    await cluster.start(victim)
    await cluster.wait_for(lambda: agreed(cluster.nodes), 60)
    assert cluster[victim].peer_id == peer_id
    return seconds, asked


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
async def test_the_master_is_killed_again_and_again(tmp_path: Path, rounds: int, tell: Tell):
    with network(NODES) as cables:
        async with toy_cluster(cables, tmp_path, NODES, *SLOW) as cluster:
            await cluster.wait_for(lambda: agreed(cluster.nodes), 60)
            done = [await kill_the_master(cluster) for _ in range(rounds)]
    times = [seconds for seconds, _ in done]
    requests, broken = sum(each.count for _, each in done), sum(each.broken for _, each in done)
    tell(
        f"a new master {median(times):.2f} s after the kill (median of {rounds}; most "
        f"{max(times):.2f} s); of {requests} requests {broken} broke off with the dead node"
    )
    assert rounds == 2 or max(times) < 10


@pytest.mark.parametrize("seconds", [0, pytest.param(30, marks=pytest.mark.soak)])
async def test_a_network_is_cut_in_two_and_heals(tmp_path: Path, seconds: float, tell: Tell):
    few, many = (0, 1), (2, 3, 4)
    with network(NODES) as cables:
        async with toy_cluster(cables, tmp_path, NODES, *SLOW) as cluster:
            await cluster.wait_for(lambda: agreed(cluster.nodes), 60)
            before = instances(cluster)
            sides = {
                index: [cluster[each] for each in side] for side in (few, many) for index in side
            }
            ids = {index: {each.peer_id for each in side} for index, side in sides.items()}
            lost = {each.peer_id for each in cluster.nodes}

            def apart() -> bool:
                return all(
                    agreed(sides[index])
                    and {peer for peer, state in cluster[index].states().items() if state != "gone"}
                    == ids[index]
                    for index in sides
                )

            async with traffic(cluster, range(NODES)) as asked:
                cables.split(few, many)
                began = trio.current_time()
                gone = await cluster.wait_for(apart, 60)
                await trio.sleep_until(began + seconds)
                await cluster.wait_for(asked.going_on, 60)
                cables.join()
                healed = await cluster.wait_for(lambda: agreed(cluster.nodes), 90)
            assert instances(cluster) == before
            assert not asked.failures(lost), asked.failures(lost)
            tell(
                f"two clusters {gone:.1f} s after the cut, one {healed:.1f} s after the heal; of "
                f"{asked.count} requests {asked.broken} broke off at the cut"
            )


async def test_nodes_are_shown_as_what_they_are(tmp_path: Path, tell: Tell):
    with network(3) as cables:
        async with toy_cluster(cables, tmp_path, 3) as cluster:
            await cluster.wait_for(lambda: agreed(cluster.nodes), 60)
            watched = cluster[2].peer_id
            others = cluster.others(2)

            def shown(state: str) -> bool:
                return all(each.states()[watched] == state for each in others)

            def lost() -> bool:
                return all(each.states()[watched] != "alive" for each in others)

            async def states() -> set[str]:
                document = await cluster.status(0)
                (node,) = (each for each in document["nodes"] if each["peer_id"] == watched)
                return {node["state"], *(each["state"] for each in node["instances"])}

            cluster.signal(2, signal.SIGSTOP)
            hung = await cluster.wait_for(lost)
            assert "unreachable" in await states()
            await cluster.wait_for(lambda: shown("gone"))
            assert await states() == {"gone", "unreachable"}
            cluster.signal(2, signal.SIGCONT)
            resumed = await cluster.wait_for(lambda: agreed(cluster.nodes))
            assert await states() == {"alive", "ready"}

            await cluster.kill(2)
            killed = await cluster.wait_for(lost)
            assert "unreachable" in await states()
            await cluster.start(2)
            back = await cluster.wait_for(lambda: agreed(cluster.nodes))
            assert cluster[2].peer_id == watched
            assert [each.states() for each in others] == [
                {each.peer_id: "alive" for each in cluster.nodes}
            ] * 2
            tell(
                f"hung: shown after {hung:.1f} s, alive again {resumed:.1f} s after it went on; "
                f"killed: shown after {killed:.1f} s, back {back:.1f} s after its start"
            )
