"""Whole nodes with toy engines, each in a network namespace of its own, and requests to them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.support.netns import Network
from tests.support.nodes import ROOT, NodeProcess, node, wait_for
from tests.support.toy_engine import answer_to, tokenize
from tests.support.toy_process import MODEL

__all__ = ["Reply", "ToyCluster", "agreed", "toy_cluster"]

API = "http://127.0.0.1:52415"
TIMEOUT = httpx.Timeout(30, connect=5)


@dataclass(frozen=True)
class Reply:
    """What a node answered."""

    prompt: str
    text: str
    error: str
    """Empty if the answer came whole."""
    report: dict[str, Any] = field(default_factory=dict)
    """What `x_baton` says."""

    @property
    def right(self) -> bool:
        return not self.error and self.text == answer_to(tokenize(self.prompt))


class ToyCluster:
    """Nodes `0..n-1`; made by `toy_cluster`."""

    def __init__(
        self, cables: Network, directory: Path, options: Sequence[str], nursery: trio.Nursery
    ) -> None:
        self.cables = cables
        self.nodes: list[NodeProcess] = []
        self._directory = directory
        self._options = options
        self._nursery = nursery

    def __getitem__(self, index: int) -> NodeProcess:
        return self.nodes[index]

    def index_of(self, peer_id: str | None) -> int:
        """Return which node has a peer id."""
        return [each.peer_id for each in self.nodes].index(str(peer_id))

    def others(self, *left_out: int) -> list[NodeProcess]:
        """Return the nodes but some."""
        return [each for index, each in enumerate(self.nodes) if index not in left_out]

    async def start(self, index: int, *options: str) -> None:
        """Start a node, for the first time or again; its identity is kept.

        Args:
            index: of the node.
            options: of `tests.support.toy_process`, after those of every node.
        """
        process = await self._nursery.start(self._run, index, options)
        self.nodes[index : index + 1] = [process]

    async def kill(self, index: int) -> None:
        """End a node as a power failure would."""
        self.nodes[index].process.kill()
        await self.nodes[index].process.wait()

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a node a signal."""
        self.nodes[index].process.send_signal(number)

    async def wait_for(self, condition: Callable[[], bool], seconds: float = 40) -> float:
        """Wait until a condition holds; return how long it took. Fails with the nodes' logs."""
        return await wait_for(condition, *self.nodes, seconds=seconds)

    async def ask(self, index: int, prompt: str, *, prefill: str = "auto") -> Reply:
        """Have a client on a node's machine ask that node, and read the answer as a stream."""
        return await self.ask_until(index, prompt, lambda _: None, prefill=prefill)

    async def ask_until(
        self, index: int, prompt: str, on_text: Callable[[str], None], *, prefill: str = "auto"
    ) -> Reply:
        """Ask, and call `on_text` in another thread with each piece of the answer."""
        return await trio.to_thread.run_sync(
            partial(self._ask, index, prompt, on_text, prefill), abandon_on_cancel=True
        )

    async def status(self, index: int) -> dict[str, Any]:
        """Return a node's `/v1/cluster` document."""

        def get() -> dict[str, Any]:
            with self.cables.inside(index):
                return httpx.get(f"{API}/v1/cluster", timeout=TIMEOUT, trust_env=False).json()

        return await trio.to_thread.run_sync(get)

    async def baton(self, index: int, *words: str) -> str:
        """Return what a command prints on a node's machine."""
        command = [*self.cables.prefix(index), sys.executable, "-P", "-m", "cli.main", *words]
        done = await trio.run_process(command, capture_stdout=True, cwd=ROOT)
        return done.stdout.decode()

    async def _run(
        self,
        index: int,
        options: Sequence[str],
        task_status: trio.TaskStatus[NodeProcess] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        context = node(
            self._directory / str(index),
            *(*self._options, *options),
            prefix=self.cables.prefix(index),
            module="tests.support.toy_process",
        )
        async with context as running:
            task_status.started(running)
            await running.process.wait()

    def _ask(self, index: int, prompt: str, on_text: Callable[[str], None], prefill: str) -> Reply:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "stream": True,
            "x_baton": {"prefill": prefill},
        }
        text, report = "", {}
        try:
            with (
                self.cables.inside(index),
                httpx.Client(timeout=TIMEOUT, trust_env=False, verify=False) as client,
                client.stream("POST", f"{API}/v1/chat/completions", json=body) as response,
            ):
                if response.status_code != 200:
                    return Reply(prompt, "", f"{response.status_code} {response.read().decode()}")
                for event in _events(response.iter_lines()):
                    if "error" in event:
                        return Reply(prompt, text, json.dumps(event["error"]))
                    report = event.get("x_baton", report)
                    for choice in event["choices"]:
                        if piece := choice["delta"].get("content"):
                            text += piece
                            on_text(piece)
        except httpx.HTTPError as error:
            return Reply(prompt, text, repr(error))
        return Reply(prompt, text, "", report)


@asynccontextmanager
async def toy_cluster(
    cables: Network, directory: Path, count: int, *options: str
) -> AsyncIterator[ToyCluster]:
    """Start nodes at once, one in each namespace.

    Args:
        cables: what they are joined by.
        directory: for their data.
        count: how many.
        options: of `tests.support.toy_process`.
    """
    async with trio.open_nursery() as nursery:
        cluster = ToyCluster(cables, directory, options, nursery)
        for index in range(count):
            await cluster.start(index)
        yield cluster
        nursery.cancel_scope.cancel()


def agreed(nodes: Iterable[NodeProcess]) -> bool:
    """Whether nodes see one master, and each other alive with an instance that is ready."""
    nodes = list(nodes)
    masters = {(each.master, each.term) for each in nodes}
    ids = {each.peer_id for each in nodes}
    if len(masters) != 1 or not masters <= {(peer_id, nodes[0].term) for peer_id in ids}:
        return False
    return all(each.sees(*nodes) and each.ready() >= ids for each in nodes)


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))
