"""Starts nodes as processes, and watches what they say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

__all__ = ["NodeProcess", "node", "wait_for"]

ROOT = Path(__file__).resolve().parents[2]


class NodeProcess:
    """A running node. `status` is its latest `/v1/cluster` document; None before the first."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.status: dict[str, Any] | None = None
        self.addresses: list[str] = []
        self.log = ""

    @property
    def peer_id(self) -> str:
        return self.status["self"] if self.status else ""

    @property
    def master(self) -> str | None:
        master = self.status["master"] if self.status else None
        return master["peer_id"] if master else None

    @property
    def term(self) -> int:
        master = self.status["master"] if self.status else None
        return master["term"] if master else 0

    @property
    def links(self) -> list[dict[str, Any]]:
        return self.status["links"] if self.status else []

    def states(self) -> dict[str, str]:
        """Return the state of each member, by peer id."""
        nodes = self.status["nodes"] if self.status else []
        return {each["peer_id"]: each["state"] for each in nodes}

    def ready(self) -> set[str]:
        """Return the members that have an instance ready, by peer id."""
        nodes = self.status["nodes"] if self.status else []
        return {
            each["peer_id"]
            for each in nodes
            if any(instance["state"] == "ready" for instance in each["instances"])
        }

    def sees(self, *others: NodeProcess) -> bool:
        """Whether the others are alive in this node's view."""
        states = self.states()
        return all(states.get(each.peer_id) == "alive" for each in others)

    async def watch(self) -> None:
        """Take in what the node prints, until it ends."""
        pending = b""
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            *lines, pending = (pending + data).split(b"\n")
            if lines:
                said = msgspec.json.decode(lines[-1])
                self.status, self.addresses = said["status"], said["addresses"]

    async def watch_log(self) -> None:
        """Keep the node's log."""
        assert self.process.stderr is not None
        async for data in self.process.stderr:
            self.log += data.decode(errors="replace")


@asynccontextmanager
async def node(
    data_dir: Path,
    *arguments: str,
    prefix: Sequence[str] = (),
    module: str = "tests.support.node_process",
) -> AsyncGenerator[NodeProcess]:
    """Run a node while open.

    Args:
        data_dir: its data directory.
        arguments: of `module`.
        prefix: words before the command, to run it elsewhere.
        module: which of the nodes of this package; the default has the cluster half alone.
    """
    command = [*prefix, sys.executable, "-m", module, str(data_dir)]
    async with trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        running = NodeProcess(process)
        nursery.start_soon(running.watch)
        nursery.start_soon(running.watch_log)
        try:
            yield running
        finally:
            with trio.CancelScope(shield=True):
                if process.stdin is not None:
                    await process.stdin.aclose()
                with trio.move_on_after(5):
                    await process.wait()
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            nursery.cancel_scope.cancel()


async def wait_for(
    condition: Callable[[], bool], *nodes: NodeProcess, seconds: float = 40.0
) -> float:
    """Wait until a condition holds; return how long it took. Fails with the nodes' logs."""
    started = trio.current_time()
    while not condition():
        await trio.sleep(0.05)
        if trio.current_time() - started > seconds:
            logs = "\n\n".join(f"{each.peer_id} {each.states()}\n{each.log}" for each in nodes)
            raise AssertionError(f"not within {seconds} s\n{logs}")
    return trio.current_time() - started
