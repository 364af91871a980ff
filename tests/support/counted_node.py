"""A whole node without engines as a process, which answers each line on stdin with a census.

    python -m tests.support.counted_node DATA_DIR [--cluster NAME]

The answer is a JSON line. The node ends, with a goodbye, when its standard input closes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import msgspec
import trio

from node.app import run
from node.cluster import Cluster
from node.config import NodeConfig
from tests.support.census import Census, take_census

__all__ = ["Answer"]


class Answer(msgspec.Struct):
    """What the node holds, and whom it sees."""

    peer_id: str
    states: dict[str, str]
    """Of the other members, by peer id."""
    links: int
    census: Census


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--cluster", default=f"test-{os.getppid()}")
    given = parser.parse_args()
    config = NodeConfig(
        api_host="127.0.0.1",
        api_port=0,
        interfaces=("lo",),
        cluster=given.cluster,
        data_dir=given.data_dir,
        models_dir=given.data_dir / "models",
    )
    run(config, engines=(), companion=answer)


async def answer(cluster: Cluster) -> None:
    stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    while await stdin.receive_some():
        others = (each for each in cluster.view.members if each.record.peer_id != cluster.peer_id)
        states = {each.record.peer_id: str(each.state) for each in others}
        said = Answer(cluster.peer_id, states, len(cluster.links), take_census())
        sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
        sys.stdout.buffer.flush()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
