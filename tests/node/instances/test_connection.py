"""The node's end of the channel to an engine, against an engine that is played by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio

from node.instances.connection import EngineConnection
from protocols.chat import Sampling
from protocols.engine import (
    Cancel,
    Cancelled,
    EngineMessage,
    Failed,
    Generate,
    NodeMessage,
    Receive,
)
from protocols.framing import Frame, FrameReader, encode_frame
from protocols.kv_prefill.messages import pack_tokens


class PlayedEngine:
    """The engine's end of the socketpair."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._reader: FrameReader[NodeMessage] = FrameReader(msgspec.msgpack.Decoder(NodeMessage))

    async def say(self, message: EngineMessage) -> None:
        await self._stream.send_all(encode_frame(msgspec.msgpack.Encoder(), message))

    async def hear(self) -> NodeMessage:
        frame: Frame[NodeMessage] | None = None
        while frame is None:
            data = b""
            while len(data) < self._reader.wanted:
                data += await self._stream.receive_some(self._reader.wanted - len(data))
            frame = self._reader.feed(data)
        return frame.message


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[EngineConnection, PlayedEngine]]:
    ours, theirs = trio.socket.socketpair()
    connection = EngineConnection(trio.SocketStream(ours))
    with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            yield connection, PlayedEngine(trio.SocketStream(theirs))
            connection.close("the test is over")
            nursery.cancel_scope.cancel()


async def test_a_failure_that_crosses_a_new_beginning_leaves_nothing_running():
    """The engine fails `Receive`, and begins what the `Generate` after it asks for."""
    async with connected() as (connection, engine), trio.open_nursery() as nursery:
        left = trio.Event()

        async def request() -> None:
            async with connection.open("r") as handle:
                await handle.send(Receive(request="r", start=0, end=4))
                sampling = Sampling()
                await handle.send(Generate(request="r", tokens=pack_tokens([1]), sampling=sampling))
                assert isinstance((await handle.receive()).message, Failed)
            left.set()

        nursery.start_soon(request)
        assert isinstance(await engine.hear(), Receive)
        assert isinstance(await engine.hear(), Generate)
        await engine.say(Failed(request="r", code="unsupported", reason="no"))
        with trio.fail_after(5):
            assert await engine.hear() == Cancel(request="r")
        assert not left.is_set()
        await engine.say(Cancelled(request="r"))
        with trio.fail_after(5):
            await left.wait()
        assert connection.requests == 0


async def test_a_request_that_ended_is_not_cancelled():
    async with connected() as (connection, engine):
        async with connection.open("r") as handle:
            await handle.send(Receive(request="r", start=0, end=4))
            assert isinstance(await engine.hear(), Receive)
            await engine.say(Cancelled(request="r"))
            await handle.receive()
        with trio.move_on_after(0.2) as waited:
            await engine.hear()
        assert waited.cancelled_caught
