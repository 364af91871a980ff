"""A node with the cluster half alone, as a process: prints what it sees, one JSON line a change.

    python -m tests.support.node_process DATA_DIR [--cluster NAME] [--interface NAME] [--peer ADDR]
        [--class NAME=CLASS]

Ends, with a goodbye, when its standard input closes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec
import trio

from node.cluster import Cluster, ClusterOptions
from node.identity import Identity, open_identity


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--cluster", default=f"test-{os.getppid()}")
    parser.add_argument("--interface", action="append", default=[])
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--class", dest="classes", action="append", default=[])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--clock-shift", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--secret", default=None)
    arguments = parser.parse_args()
    right = time.time
    time.time = lambda: right() + arguments.clock_shift
    options = ClusterOptions(
        cluster=arguments.cluster,
        interfaces=tuple(arguments.interface),
        interface_classes=dict(each.split("=") for each in arguments.classes),
        peers=tuple(arguments.peer),
        port=arguments.port,
        secret=arguments.secret.encode() if arguments.secret else None,
    )
    with open_identity(arguments.data_dir) as identity:
        trio.run(run, identity, options)


async def run(identity: Identity, options: ClusterOptions) -> None:
    async with Cluster.joined(identity, options) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(end_with_stdin, nursery.cancel_scope)
        said = b""
        while True:
            line = describe(cluster)
            if line != said:
                sys.stdout.buffer.write(line + b"\n")
                sys.stdout.buffer.flush()
                said = line
            await trio.sleep(0.05)


def describe(cluster: Cluster) -> bytes:
    """Return what a node prints, without what changes by itself."""
    status = cluster.status()
    nodes = tuple(msgspec.structs.replace(node, last_seen_s=0.0) for node in status.nodes)
    status = msgspec.structs.replace(status, nodes=nodes)
    return msgspec.json.encode({"addresses": cluster.own_record.addresses, "status": status})


async def end_with_stdin(scope: trio.CancelScope) -> None:
    stdin = trio.lowlevel.FdStream(sys.stdin.fileno())
    while await stdin.receive_some():
        pass
    scope.cancel()


if __name__ == "__main__":
    main()
