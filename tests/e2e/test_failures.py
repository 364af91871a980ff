"""Real processes killed at work: what the client gets, and that all is well again after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from bench.nodes import LocalNode
from tests.support.api import (
    MODEL,
    body,
    chat,
    engine_pids,
    load,
    own_record,
    post,
    record_of,
    streaming,
    until,
)
from tests.support.prompts import question

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

Pair = tuple[LocalNode, LocalNode]

ASK = "What is the name of the lighthouse?"
ANSWER = "The lighthouse is called Sker Point."
"""After six paragraphs; ahead by 0.5 logits at every token (transformers in float32)."""
TWO_STEPS = question(6, ASK)
"""Of about 1,500 tokens: the engine's first step ends well before the prompt does."""


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream."""
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield msgspec.json.decode(line.removeprefix("data: "))


def collect(lines: Iterator[str]) -> tuple[str, dict[str, Any]]:
    """Return the text of what is left of a stream, and its last event."""
    text, last = "", dict[str, Any]()
    for last in events(lines):
        text += "".join(each["delta"].get("content", "") for each in last.get("choices", []))
    return text, last


def wait_for_work(node: LocalNode) -> None:
    until(lambda: load(node) > 0)


def states(node: LocalNode, peer_id: str | None = None) -> list[str]:
    """Return the states of a node's instances, or of another's as the node knows them."""
    return [each["state"] for each in record_of(node, peer_id)["instances"]]


def kill_engine(node: LocalNode) -> None:
    """Kill a node's only engine process, and wait until the node has noticed."""
    (pid,) = engine_pids(node)
    os.kill(pid, signal.SIGKILL)
    until(lambda: states(node) != ["ready"])


def wait_for_restart(node: LocalNode, pair: Pair) -> None:
    """Wait until the engine runs again, and both nodes know that it is ready."""
    until(lambda: states(node) == ["ready"], seconds=120)
    peer = own_record(node)["peer_id"]
    for other in pair:
        until(lambda other=other: states(other, peer) == ["ready"])


@pytest.mark.parametrize(
    ("victim", "moment"),
    [("engine", "between two steps"), ("node", "in the first step"), ("node", "between two steps")],
)
def test_the_prefill_side_is_killed_mid_transfer(own_pair: Pair, victim: str, moment: str):
    prefill, decode = own_pair
    with streaming(decode, TWO_STEPS, prefill="remote") as lines:
        if moment == "in the first step":
            wait_for_work(prefill)
        else:
            assert any(line.startswith(": prompt ") for line in lines)
        if victim == "node":
            prefill.kill()
        else:
            kill_engine(prefill)
        text, last = collect(lines)
    report = last["x_baton"]
    assert text == ANSWER
    assert report["prefill"] == "local"
    assert "prefill elsewhere failed" in report["reason"]
    assert ("tokens of it were used" in report["reason"]) == (moment == "between two steps")
    assert report["tokens"]["computed"] == report["tokens"]["prompt"]
    if victim == "engine":
        # The node itself has not gone anywhere, and its engine comes back.
        assert prefill.process.poll() is None
        wait_for_restart(prefill, own_pair)
        again, report = chat(decode, TWO_STEPS, prefill="remote")
        assert (again, report["prefill"]) == (ANSWER, "remote")
    else:
        again, report = chat(decode, question(1, ASK), prefill="remote", max_tokens=4)
        assert again
        assert report["prefill"] == "local"
        assert report["reason"]


def test_the_decode_engine_is_killed_while_it_answers(pair: Pair):
    decode = pair[1]
    with streaming(decode, "Count from one to a thousand.", max_tokens=500) as lines:
        stream = events(lines)
        for event in stream:
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                break
        kill_engine(decode)
        *_, last = stream
    assert "engine" in last["error"]["message"]
    # Both nodes say so at once, or wait for the engine: a client needs not know.
    for node in pair:
        response = post(node, body("Hello", max_tokens=2))
        assert response.status_code in (200, 503), response.text
        if response.status_code == 503:
            assert 0 < int(response.headers["retry-after"]) < 60
            assert MODEL in response.json()["error"]["message"]
    assert decode.process.poll() is None
    wait_for_restart(decode, pair)
    assert chat(decode, "Hello", max_tokens=2)[0]
