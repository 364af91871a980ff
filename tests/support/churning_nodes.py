"""Nodes of one process that join a cluster and leave it again, each time with new identities.

    python -m tests.support.churning_nodes DIRECTORY COUNT PEER_ID [--cluster NAME]

Prints a line each time all COUNT nodes are linked with PEER_ID and see it alive. At a line on
standard input they leave with a goodbye and join anew; when it closes they leave for good.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from loguru import logger

from node.cluster import Cluster, ClusterOptions
from node.identity import open_identity


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("peer_id")
    parser.add_argument("--cluster", default=f"test-{os.getppid()}")
    given = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    options = ClusterOptions(cluster=given.cluster, interfaces=("lo",))
    trio.run(churn, given.directory, given.count, given.peer_id, options)


async def churn(directory: Path, count: int, peer_id: str, options: ClusterOptions) -> None:
    stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    while True:
        async with AsyncExitStack() as stack:
            nodes: list[Cluster] = []
            for _ in range(count):
                data = stack.enter_context(tempfile.TemporaryDirectory(dir=directory))
                identity = stack.enter_context(open_identity(Path(data)))
                nodes.append(await stack.enter_async_context(Cluster.joined(identity, options)))
            for node in nodes:
                await node.wait_until(lambda each: _knows(each, peer_id))
            sys.stdout.write(" ".join(node.peer_id for node in nodes) + "\n")
            sys.stdout.flush()
            if not await stdin.receive_some():
                return


def _knows(node: Cluster, peer_id: str) -> bool:
    return node.view.is_alive(peer_id) and node.host.best_link(peer_id) is not None


if __name__ == "__main__":
    main()
