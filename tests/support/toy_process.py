"""A whole node as a process, with an engine that runs a toy model; prints what it sees.

    python -m tests.support.toy_process DATA_DIR [--role R] [--step-s S] [--api HOST:PORT] ...

It is `node.app.run` as `baton up` calls it, but for the engine's command. Each change of its view
is one JSON line on stdout: `{"at": Unix seconds, "addresses": [...], "status": {...}}`. It ends,
with a goodbye, when its standard input closes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import trio

from node.app import EnginePlan, run
from node.cluster import Cluster
from node.config import NodeConfig, parse_api
from protocols.gossip import Role
from tests.support.node_process import describe

MODEL = "toy"
ENGINE = Path(__file__).with_name("toy_engine.py")
"""Run, and not imported: its NumPy would be a third of what a node takes to start."""
ROLES: dict[str, tuple[Role, ...]] = {
    "prefill": ("prefill",),
    "decode": ("decode",),
    "both": ("prefill", "decode"),
    "none": (),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--role", choices=ROLES, default="both")
    parser.add_argument("--step-s", default="0.001")
    parser.add_argument("--api", default="127.0.0.1:52415")
    parser.add_argument("--cluster", default=f"test-{os.getppid()}")
    parser.add_argument("--interface", action="append", default=[])
    parser.add_argument("--class", dest="classes", action="append", default=[])
    parser.add_argument("--peer", action="append", default=[])
    given = parser.parse_args()
    roles = ROLES[given.role]
    models = given.data_dir / "models"
    checkpoint = models / MODEL
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "config.json").write_text("{}")
    host, port = parse_api(given.api)
    config = NodeConfig(
        models=(MODEL,),
        api_host=host,
        api_port=port,
        peers=tuple(given.peer),
        interfaces=tuple(given.interface),
        interface_classes=dict(each.split("=") for each in given.classes),
        cluster=given.cluster,
        data_dir=given.data_dir,
        models_dir=models,
        remote_prefill_min_tokens=64,
    )
    engines: EnginePlan = (("mlx", roles),) if roles else ()
    run(
        config,
        engines=engines,
        command=lambda _: [sys.executable, "-P", str(ENGINE), "--step-s", given.step_s],
        companion=watch,
    )


async def watch(cluster: Cluster) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_with_stdin)
        said = b""
        while True:
            line = describe(cluster)
            if line != said:
                said = line
                sys.stdout.buffer.write(b'{"at":%r,%b\n' % (time.time(), line[1:]))
                sys.stdout.buffer.flush()
            await trio.sleep(0.05)


async def end_with_stdin() -> None:
    stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    while await stdin.receive_some():
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
