"""Asking real nodes over HTTP, and looking at what their engines hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from bench.nodes import LocalNode
from tests.support.processes import children_with

__all__ = ["MODEL", "chat", "engine_pids", "load", "own_record", "record_of", "streaming", "until"]

MODEL = "SmolLM2-135M-Instruct"
TIMEOUT = httpx.Timeout(300, connect=10)


def body(content: str, **options: Any) -> dict[str, Any]:
    """Return a greedy request of one message."""
    prefill = options.pop("prefill", "auto")
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 24,
        "x_baton": {"prefill": prefill},
        **options,
    }


def post(node: LocalNode, document: Any) -> httpx.Response:
    """Post a body, JSON or not, to the chat endpoint."""
    url = f"http://{node.api}/v1/chat/completions"
    if isinstance(document, bytes):
        return httpx.post(url, content=document, timeout=TIMEOUT)
    return httpx.post(url, json=document, timeout=TIMEOUT)


def chat(node: LocalNode, content: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """Return a whole answer, and its `x_baton`.

    Raises:
        AssertionError: the node answered with an error.
    """
    response = post(node, body(content, **options))
    assert response.status_code == 200, response.text
    document = response.json()
    return document["choices"][0]["message"]["content"], document["x_baton"]


@contextmanager
def streaming(node: LocalNode, content: str, **options: Any) -> Iterator[Iterator[str]]:
    """Stream an answer, and yield its lines; leaving the context drops the connection."""
    document = body(content, stream=True, **options)
    url = f"http://{node.api}/v1/chat/completions"
    with httpx.stream("POST", url, json=document, timeout=TIMEOUT) as response:
        assert response.status_code == 200
        yield response.iter_lines()


def own_record(node: LocalNode) -> dict[str, Any]:
    """Return what a node says of itself."""
    return record_of(node)


def record_of(node: LocalNode, peer_id: str | None = None) -> dict[str, Any]:
    """Return what a node knows of another, or of itself."""
    document: dict[str, Any] = node.document("/v1/cluster")
    wanted = peer_id or document["self"]
    return next(each for each in document["nodes"] if each["peer_id"] == wanted)


def load(node: LocalNode) -> int:
    """Return how many requests a node's engines hold."""
    return sum(each["load"] for each in own_record(node)["instances"])


def engine_pids(node: LocalNode) -> list[int]:
    """Return the pids of a node's engine processes."""
    return [each.pid for each in children_with("engines.process", node.process.pid)]


def until(condition: Callable[[], bool], seconds: float = 60) -> float:
    """Wait until a condition holds, and return how long that took.

    Raises:
        AssertionError: it took longer than `seconds`.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "waited in vain"
        time.sleep(0.05)
    return time.monotonic() - began
