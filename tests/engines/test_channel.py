"""What waits at the engine process's end of the channel while the node reads nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from engines import channel
from engines.channel import NodeChannel
from protocols.engine import Progress

PAYLOAD = bytes(1 << 20)


def told(request: str) -> Progress:
    return Progress(request=request, done=0, total=1)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[NodeChannel, socket.socket]]:
    """A channel whose queue is full of request `a`'s payloads, and the node's end of it."""
    monkeypatch.setattr(channel, "MAX_QUEUED_BULK", len(PAYLOAD))
    ours, theirs = socket.socketpair()
    node_channel = NodeChannel(ours)
    with theirs:
        # The socket takes a part of the first; the rest of it is with the writer.
        node_channel.send_bulk("a", told("a"), [PAYLOAD])
        while node_channel._bulk:
            pass
        node_channel.send_bulk("a", told("a"), [PAYLOAD])
        yield node_channel, theirs
    node_channel.close()


def in_thread(node_channel: NodeChannel, request: str) -> threading.Thread:
    thread = threading.Thread(
        target=node_channel.send_bulk, args=(request, told(request), [PAYLOAD]), daemon=True
    )
    thread.start()
    return thread


def test_what_has_no_payload_never_waits(full: tuple[NodeChannel, socket.socket]):
    node_channel, _ = full
    node_channel.send_bulk("a", told("a"))
    node_channel.send_bulk("b", told("b"))
    assert [item.request for item in node_channel._bulk] == ["a", "a", "b"]


def test_a_payload_waits_for_room_until_those_before_it_are_dropped(
    full: tuple[NodeChannel, socket.socket],
):
    node_channel, _ = full
    waiting = in_thread(node_channel, "b")
    node_channel.drop("b")
    waiting.join(0.2)
    assert waiting.is_alive(), "what fills the queue is another request's"
    node_channel.drop("a")
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_payload_waits_until_the_node_reads(full: tuple[NodeChannel, socket.socket]):
    node_channel, node = full
    waiting = in_thread(node_channel, "b")
    waiting.join(0.2)
    assert waiting.is_alive()
    received = 0
    while received < len(PAYLOAD) * 2:
        received += len(node.recv(1 << 20))
    waiting.join(5)
    assert not waiting.is_alive()
