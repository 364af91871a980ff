"""A prefill by another node, as the stream tells of it: in order, broken off, or silent."""

from __future__ import annotations

from typing import cast

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from node.instances.connection import RequestHandle
from node.prefill.remote import RemotePrefill, prefill_there
from node.prefill.transfer import STALL_TIMEOUT_S, Transfer, inject_all
from node.transport.errors import StreamClosed, StreamReset, TransportError
from node.transport.streams import BytesLike, ByteStream
from protocols.cache import AttentionLayer, CacheLayout
from protocols.engine import NodeMessage
from protocols.framing import encode_frame
from protocols.kv_prefill.client import (
    Accepted,
    ChunkArrived,
    Client,
    Completed,
    TransferFailed,
)
from protocols.kv_prefill.codec import encode_chunk
from protocols.kv_prefill.messages import (
    Accept,
    Done,
    Failed,
    Request,
    ServerMessage,
    Timings,
    hash_tokens,
    pack_tokens,
)
from tests.support.caches import arrays_for

LAYOUT = CacheLayout("bfloat16", (AttentionLayer(2, 8, 8),) * 2, "fingerprint")
END = 6
TOKENS = pack_tokens(list(range(END)))
REQUEST = Request(
    id="r",
    model="m",
    fingerprint=LAYOUT.fingerprint,
    tokens=TOKENS,
    tokens_hash=hash_tokens(TOKENS),
    start=0,
    end=END,
    dtypes=("bfloat16",),
    codecs=("raw",),
    deadline_ms=1000,
)
DONE = Done(2, 0, 0, Timings(0.0, 0.5, 0.0, 0.1))


def frame(message: ServerMessage) -> bytes:
    return bytes(encode_frame(msgspec.msgpack.Encoder(), message))


def chunk(layer: int, start: int = 0, end: int = END) -> bytes:
    arrays = arrays_for(np.random.default_rng(layer), LAYOUT, layer, end - start)
    header, buffers = encode_chunk(layer, start, end, arrays, "raw")
    return frame(header) + b"".join(bytes(each) for each in buffers)


ACCEPT = frame(Accept(LAYOUT, epoch="e", cached=0, codec="raw", tokens_per_s=100.0))
ALL = ACCEPT + chunk(0) + chunk(1)
PART = ACCEPT + chunk(0) + chunk(1, 0, 4)


class ScriptedStream:
    """Yields bytes, then raises, or says nothing for ever; notes how it was ended."""

    def __init__(self, data: bytes, then: TransportError | None) -> None:
        self._data = data
        self._then = then
        self.ended = ""

    async def read_exactly_into(self, buffer: memoryview) -> None:
        await trio.lowlevel.checkpoint()
        size = len(buffer)
        if len(self._data) < size:
            if self._then is None:
                await trio.sleep_forever()
            raise self._then or AssertionError
        buffer[:], self._data = self._data[:size], self._data[size:]

    async def send(self, *buffers: BytesLike) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        self.ended = "closed"

    async def reset(self) -> None:
        self.ended = "reset"


class Injected:
    """Takes what would go to the decode engine."""

    id = "r"

    async def send(self, message: NodeMessage, payload: memoryview | None = None) -> None:
        await trio.lowlevel.checkpoint()


async def transfer(stream: ScriptedStream) -> Transfer:
    async def open_stream(peer_id: str, protocol: str) -> ByteStream:
        return cast("ByteStream", stream)

    async def progress(usable: int) -> None:
        pass

    async with prefill_there(open_stream, "peer", REQUEST, LAYOUT) as source:
        assert isinstance(source, RemotePrefill)
        handle = cast("RequestHandle", Injected())
        return await inject_all(source, handle, END, 5.0, progress)


@pytest.mark.parametrize(
    ("data", "then", "ended"),
    [
        pytest.param(ALL + frame(DONE), None, "closed", id="as it should be"),
        pytest.param(ALL, StreamClosed("closed"), "closed", id="closed without a word"),
        pytest.param(ALL, StreamReset("reset"), "reset", id="reset"),
        pytest.param(ALL, None, "reset", id="silent"),
        pytest.param(ALL + frame(Failed("it died", True)), None, "closed", id="failed"),
        pytest.param(ALL + ACCEPT, None, "reset", id="out of order"),
        pytest.param(ALL + b"\xff" * 64, None, "reset", id="nonsense"),
    ],
)
async def test_what_has_arrived_whole_is_complete(
    data: bytes, then: TransportError | None, ended: str, autojump_clock: MockClock
):
    stream = ScriptedStream(data, then)
    result = await transfer(stream)
    assert (result.complete, result.usable_end, result.reason) == (True, END, "")
    assert stream.ended == ended


@pytest.mark.parametrize(
    ("data", "then", "reason"),
    [
        (PART + frame(DONE), None, "the server was done, but"),
        (PART, StreamClosed("closed"), "the stream ended early"),
        (PART, StreamReset("it was reset"), "it was reset; 4 tokens had arrived complete"),
        (PART, None, f"it sent nothing for {STALL_TIMEOUT_S:.0f} s"),
        (PART + ACCEPT, None, "it broke the protocol"),
    ],
)
async def test_what_is_missing_is_told_and_the_rest_is_kept(
    data: bytes, then: TransportError | None, reason: str, autojump_clock: MockClock
):
    stream = ScriptedStream(data, then)
    result = await transfer(stream)
    assert not result.complete
    assert result.usable_end == 4
    assert reason in result.reason
    assert stream.ended == ("closed" if data.endswith(frame(DONE)) else "reset")


@pytest.mark.parametrize(
    ("data", "then", "kept"),
    [
        (PART + ACCEPT, None, False),
        (b"\xff" * 64, None, False),
        (PART, StreamClosed("closed"), True),
        (PART, StreamReset("it was reset"), True),
        (ALL + frame(DONE), None, True),
    ],
)
async def test_only_what_no_node_may_say_is_held_against_it(
    data: bytes, then: TransportError | None, kept: bool, autojump_clock: MockClock
):
    stream = cast("ByteStream", ScriptedStream(data, then))
    source = RemotePrefill(stream, Client(REQUEST, LAYOUT))
    while not isinstance(await source.next_event(), TransferFailed | Completed):
        continue
    assert (source.violation == "") == kept


async def test_silence_before_the_answer_ends_when_the_caller_says(autojump_clock: MockClock):
    began = trio.current_time()
    result = await transfer(ScriptedStream(b"", None))
    assert trio.current_time() - began == pytest.approx(5, abs=0.1)
    assert not result.complete
    assert "5 s" in result.reason


class Lent:
    """Counts what is taken and not given back."""

    def __init__(self) -> None:
        self.held: list[memoryview] = []

    async def take(self, size: int) -> memoryview:
        await trio.lowlevel.checkpoint()
        self.held.append(memoryview(bytearray(size)))
        return self.held[-1]

    def give_back(self, payload: memoryview) -> None:
        self.held = [each for each in self.held if each is not payload]


async def test_payloads_are_read_into_memory_that_is_given_back():
    lent = Lent()
    stream = cast("ByteStream", ScriptedStream(ALL[:-1], StreamReset("it was reset")))
    source = RemotePrefill(stream, Client(REQUEST, LAYOUT), lent)
    assert isinstance(await source.next_event(), Accepted)
    event = await source.next_event()
    assert isinstance(event, ChunkArrived)
    assert [event.payload] == lent.held
    assert event.payload is lent.held[0], "the memory is known by the very object"
    # What was being read when the stream broke is not held any longer.
    assert isinstance(await source.next_event(), TransferFailed)
    assert [event.payload] == lent.held
    await source.release(event)
    assert lent.held == []
