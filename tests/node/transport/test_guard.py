"""What a handler's end, of whatever kind, means for its stream."""

import pytest
import trio
from libp2p.network.stream.net_stream import NetStream

from node.transport.errors import StreamClosed, StreamReset
from node.transport.guard import byte_stream_handler
from tests.support.transport import as_byte_stream, fast_pair


async def ends_of(a, b):
    opened = await a.open_stream()
    return as_byte_stream(opened), NetStream(await b.accept_stream(), None, None)


async def test_a_handler_that_returns_ends_its_stream():
    async def answer(stream):
        await stream.send(await stream.read_exactly(2))

    async with fast_pair() as (a, b):
        stream, net_stream = await ends_of(a, b)
        await stream.send(b"hi")
        await byte_stream_handler(answer)(net_stream)
        assert await stream.read_exactly(2) == b"hi"
        with pytest.raises(StreamClosed):
            await stream.read_exactly(1)


@pytest.mark.parametrize("error", [StreamClosed("early"), RuntimeError("a mistake")])
async def test_a_handler_that_raises_resets_its_stream(error):
    async def fail(stream):
        raise error

    async with fast_pair() as (a, b):
        stream, net_stream = await ends_of(a, b)
        await byte_stream_handler(fail)(net_stream)
        with pytest.raises(StreamReset):
            await stream.read_exactly(1)


async def test_a_handler_that_is_cancelled_resets_its_stream_and_stays_cancelled():
    async with fast_pair() as (a, b):
        stream, net_stream = await ends_of(a, b)
        with trio.move_on_after(0.05) as scope:
            await byte_stream_handler(wait)(net_stream)
        assert scope.cancelled_caught
        with pytest.raises(StreamReset):
            await stream.read_exactly(1)


async def wait(stream):
    await stream.read_exactly(1)
