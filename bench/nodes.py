"""Nodes of this machine, started for a measurement and ended after it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import msgspec

from bench.namespaces import Network, network

__all__ = ["LocalNode", "NodeFailed", "Place", "start_node", "start_pair"]

READY_TIMEOUT_S: Final = 300.0
STOP_TIMEOUT_S: Final = 15.0
LOG_TAIL: Final = 15
"""Lines of a node's log shown when it fails."""


class NodeFailed(Exception):
    """A node ended, or did not get ready in time."""


class LocalNode(msgspec.Struct):
    """A `baton up` process and how to reach it."""

    name: str
    api: str
    """host:port of the HTTP API."""
    process: subprocess.Popen[bytes]
    log: Path
    reach: Callable[[], AbstractContextManager[None]] = nullcontext
    """To be entered by who opens a connection to the API."""

    def tail(self) -> str:
        """Return the end of the node's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL:])

    def kill(self) -> None:
        """End the process at once, as a power failure would."""
        self.process.kill()
        self.process.wait()

    def document(self, path: str) -> dict[str, object]:
        """Return the JSON document at `path` of the API, or an empty one while nobody answers."""
        try:
            with self.reach():
                response = httpx.get(f"http://{self.api}{path}", timeout=10)
            return msgspec.json.decode(response.content, type=dict[str, object])
        except (httpx.TransportError, msgspec.DecodeError):
            return {}

    def wait_until(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` holds.

        Raises:
            NodeFailed: the process ended, or it took longer than `READY_TIMEOUT_S`.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ready():
            if self.process.poll() is not None:
                raise NodeFailed(f"the {self.name} node ended while {what}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise NodeFailed(
                    f"the {self.name} node was still {what} after {READY_TIMEOUT_S:.0f} s:\n"
                    f"{self.tail()}"
                )
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Place(msgspec.Struct):
    """Where a node runs."""

    interface: str = "lo"
    """The only network interface that it uses."""
    prefix: Sequence[str] = ()
    """Words before its command, as those of a namespace."""
    reach: Callable[[], AbstractContextManager[None]] = nullcontext
    """See `LocalNode.reach`."""


@contextmanager
def start_node(name: str, *options: str, place: Place | None = None) -> Iterator[LocalNode]:
    """Run `baton up` with a data directory of its own for the length of the `with` block.

    Args:
        name: for people; part of the log's name.
        options: more options of `baton up`.
        place: where; left out, on the loopback interface.
    """
    place = place or Place()
    with tempfile.TemporaryDirectory(prefix=f"baton-{name}-", ignore_cleanup_errors=True) as home:
        api = f"127.0.0.1:{_free_port()}"
        log = Path(home) / "log"
        command = [
            *place.prefix,
            sys.executable,
            "-P",
            "-m",
            "cli.main",
            "up",
            "--data-dir",
            home,
            "--api",
            api,
        ]
        command += ["--interface", place.interface, *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        try:
            yield LocalNode(name=name, api=api, process=process, log=log, reach=place.reach)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def start_pair(
    model: str,
    cluster: str,
    tell: Callable[[str], None] = lambda _: None,
    *,
    link_mb_per_s: float | None = None,
) -> Iterator[tuple[LocalNode, LocalNode]]:
    """Run a prefill node and a decode node until both are ready, and as long as open.

    Args:
        model: which both load.
        cluster: the cluster's name, which keeps other nodes of this machine out.
        tell: told in words what is being waited for.
        link_mb_per_s: puts them in network namespaces joined by a link of this rate, in 10^6 bytes
            a second either way; left out, they are on the loopback interface.

    Yields:
        the prefill node and the decode node.

    Raises:
        NodeFailed: one of them ended or did not get ready.
        NamespacesUnavailable: there can be no such link here.
    """
    shared = ("--model", model, "--cluster", cluster)
    with ExitStack() as stack:
        places = (Place(), Place())
        if link_mb_per_s is not None:
            places = _joined(stack.enter_context(network(2, Network)), link_mb_per_s)
        tell("starting a prefill node and a decode node")
        prefill, decode = (
            stack.enter_context(start_node(role, "--role", role, *shared, place=place))
            for role, place in zip(("prefill", "decode"), places, strict=True)
        )
        for node in (decode, prefill):
            node.wait_until("starting", lambda node=node: bool(node.document("/health")))
        tell("waiting until they have found each other")
        for node in (prefill, decode):
            node.wait_until("alone", lambda node=node: _peers(node) == 2)
        tell(f"loading {model} with MLX for decode and with vLLM for prefill")
        decode.wait_until("loading", lambda: _sees_ready(decode, model))
        yield prefill, decode


def _joined(cables: Network, link_mb_per_s: float) -> tuple[Place, Place]:
    for index in range(2):
        cables.set_rate(index, link_mb_per_s * 8)
    first, second = (
        Place(interface="net0", prefix=cables.prefix(index), reach=partial(cables.inside, index))
        for index in range(2)
    )
    return first, second


def _nodes(node: LocalNode) -> list[dict[str, object]]:
    nodes = node.document("/v1/cluster").get("nodes", [])
    return msgspec.convert(nodes, list[dict[str, object]])


def _peers(node: LocalNode) -> int:
    return sum(peer.get("state") == "alive" for peer in _nodes(node))


def _sees_ready(node: LocalNode, model: str) -> bool:
    """Say whether `node` knows of a ready instance of `model` on each of two nodes."""
    ready = 0
    for peer in _nodes(node):
        for instance in msgspec.convert(peer.get("instances", []), list[dict[str, object]]):
            if instance.get("state") == "failed":
                raise NodeFailed(f"{instance.get('engine')} cannot load {model}:\n{node.tail()}")
            ready += instance.get("state") == "ready" and instance.get("model") == model
    return ready == 2
