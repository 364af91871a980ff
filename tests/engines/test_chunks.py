"""Chunks on their way out of an engine: encoded by several threads, sent in order, bounded."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from engines import chunks
from engines.channel import NodeChannel
from engines.chunks import ChunkSender
from protocols.engine import EngineMessage, Failed, PrefillChunk, PrefillFinished, PrefillStarted
from protocols.framing import Frame, FrameReader
from protocols.kv_prefill.codec import encode_chunk
from protocols.kv_prefill.messages import Chunk, Codec

TOKENS = 16
CHUNKS = 60


class Node:
    """The node's end of the channel, read in the test's thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb")
        self._reader: FrameReader[EngineMessage] = FrameReader(
            msgspec.msgpack.Decoder(EngineMessage),
            lambda message: message.chunk.size if isinstance(message, PrefillChunk) else 0,
        )

    def hear(self) -> Frame[EngineMessage]:
        frame = None
        while frame is None:
            frame = self._reader.feed(self._file.read(self._reader.wanted))
        return frame

    def hear_all(self) -> list[Frame[EngineMessage]]:
        """Return everything up to a terminal message."""
        frames = [self.hear()]
        while not isinstance(frames[-1].message, PrefillFinished | Failed):
            frames.append(self.hear())
        return frames


@contextmanager
def sender(threads: int = 4) -> Iterator[tuple[ChunkSender, Node]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(20)
    channel = NodeChannel(ours)
    sending = ChunkSender(channel, threads)
    with theirs:
        yield sending, Node(theirs)
        sending.close()
    channel.close()


def arrays(number: int) -> tuple[np.ndarray, np.ndarray]:
    keys = np.full((TOKENS, 2, 64), number, np.uint16)
    return keys, keys + 1


def start(sending: ChunkSender, request: str, codec: Codec = "raw") -> None:
    sending.expect(request)
    sending.open(request, codec, 0)


def emit(sending: ChunkSender, request: str, number: int) -> None:
    sending.emit(request, number, number * TOKENS, (number + 1) * TOKENS, arrays(number))


def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have encoding take times that have nothing to do with the order."""
    times = random.Random(7)

    def encode(
        layer: int, start: int, end: int, parts: Sequence[np.ndarray], codec: Codec
    ) -> tuple[Chunk, list[memoryview]]:
        time.sleep(times.random() * 0.005)
        return encode_chunk(layer, start, end, parts, codec)

    monkeypatch.setattr(chunks, "encode_chunk", encode)


@pytest.mark.parametrize("codec", ["raw", "planes"])
def test_chunks_leave_in_the_order_in_which_they_were_emitted(
    monkeypatch: pytest.MonkeyPatch, codec: Codec
):
    slowly(monkeypatch)
    with sender() as (sending, node):
        start(sending, "a", codec)
        for number in range(CHUNKS):
            emit(sending, "a", number)
        sending.finish("a", 5)
        started, *carried, finished = node.hear_all()
        assert isinstance(started.message, PrefillStarted)
        heard = [frame.message for frame in carried]
        assert all(isinstance(message, PrefillChunk) for message in heard)
        layers = [message.chunk.layer for message in heard if isinstance(message, PrefillChunk)]
        assert layers == list(range(CHUNKS))
        assert isinstance(finished.message, PrefillFinished)
        assert finished.message.chunks == CHUNKS
        assert finished.message.sent_bytes == sum(len(frame.payload) for frame in carried)


def test_requests_do_not_wait_for_each_other_and_each_keeps_its_order(
    monkeypatch: pytest.MonkeyPatch,
):
    slowly(monkeypatch)
    with sender() as (sending, node):
        for request in "ab":
            start(sending, request)
        for number in range(CHUNKS):
            for request in "ab":
                emit(sending, request, number)
        for request in "ab":
            sending.finish(request, 5)
        heard = [frame.message for frame in node.hear_all() + node.hear_all()]
        for request in "ab":
            layers = [
                message.chunk.layer
                for message in heard
                if isinstance(message, PrefillChunk) and message.request == request
            ]
            assert layers == list(range(CHUNKS))


def test_several_threads_encode_at_once(monkeypatch: pytest.MonkeyPatch):
    together = threading.Barrier(3, timeout=20)

    def encode(
        layer: int, start: int, end: int, parts: Sequence[np.ndarray], codec: Codec
    ) -> tuple[Chunk, list[memoryview]]:
        together.wait()
        return encode_chunk(layer, start, end, parts, codec)

    monkeypatch.setattr(chunks, "encode_chunk", encode)
    with sender(3) as (sending, node):
        start(sending, "a")
        for number in range(3):
            emit(sending, "a", number)
        sending.finish("a", 0)
        assert isinstance(node.hear_all()[-1].message, PrefillFinished)


def test_emitting_waits_for_acknowledgements(monkeypatch: pytest.MonkeyPatch):
    size = sum(array.nbytes for array in arrays(0))
    monkeypatch.setattr(chunks, "MAX_UNACKNOWLEDGED", 2 * size)
    with sender() as (sending, node):
        start(sending, "a")
        emit(sending, "a", 0)
        emit(sending, "a", 1)
        third = threading.Thread(target=emit, args=(sending, "a", 2), daemon=True)
        third.start()
        third.join(0.2)
        assert third.is_alive()
        sending.acknowledge("a", size)
        third.join(5)
        assert not third.is_alive()
        sending.finish("a", 0)
        assert len(node.hear_all()) == 5


def test_what_cannot_be_encoded_fails_the_request_and_nothing_else():
    with sender() as (sending, node):
        start(sending, "a")
        start(sending, "b")
        emit(sending, "b", 0)
        sending.emit("a", 0, 0, TOKENS, [np.zeros((4, 4), np.uint16).T])
        sending.finish("a", 0)
        messages: list[EngineMessage] = []
        while not any(isinstance(message, Failed) for message in messages):
            messages.append(node.hear().message)
        emit(sending, "b", 1)
        sending.finish("b", 0)
        while not any(isinstance(message, PrefillFinished) for message in messages):
            messages.append(node.hear().message)
        (failed,) = (message for message in messages if isinstance(message, Failed))
        assert failed.request == "a"
        (finished,) = (message for message in messages if isinstance(message, PrefillFinished))
        assert (finished.request, finished.chunks) == ("b", 2)


def test_a_discarded_request_wakes_who_waits_and_says_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(chunks, "MAX_UNACKNOWLEDGED", 1)
    with sender() as (sending, node):
        start(sending, "a")
        emit(sending, "a", 0)
        waiting = threading.Thread(target=emit, args=(sending, "a", 1), daemon=True)
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        sending.discard("a")
        waiting.join(5)
        assert not waiting.is_alive()
        sending.finish("a", 0)
        start(sending, "b")
        sending.finish("b", 0)
        messages = [frame.message for frame in node.hear_all()]
        assert isinstance(messages[-1], PrefillFinished)
        assert messages[-1].request == "b"
