"""Five machines that are switched on at once are one cluster."""

from pathlib import Path

import pytest

from tests.support.netns import network
from tests.support.toy_cluster import agreed, toy_cluster

pytestmark = pytest.mark.e2e

NODES = 5


async def test_five_machines_are_one_cluster(tmp_path: Path):
    with network(NODES) as cables:
        async with toy_cluster(cables, tmp_path, NODES) as cluster:
            await cluster.wait_for(lambda: agreed(cluster.nodes))
            reply = await cluster.ask(3, "what is it")
            assert reply.right, reply
