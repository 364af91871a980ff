"""`ByteStream` over every pairing of our yamux and the stock one."""

import pytest
import trio

from node.transport.errors import ConnectionLost, StreamClosed, StreamReset
from tests.support.transport import connection_pair, open_streams, stream_pair, until_closed

PAIRS = [(True, True), (True, False), (False, True), (False, False)]
every_pair = pytest.mark.parametrize("fast", PAIRS, ids=["fast", "to-stock", "from-stock", "stock"])
PATTERN = bytes(i * 7 % 251 for i in range(251)) * 20_000


async def close_both(*streams):
    for stream in streams:
        await stream.close()


@every_pair
async def test_bytes_cross_in_both_directions_at_once(fast):
    async with stream_pair(fast) as (a, b):
        assert (a.is_fast, b.is_fast) == fast

        async def receive(stream, size):
            got = bytearray(size)
            await stream.read_exactly_into(got)
            assert got == PATTERN[:size]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, a, 700_000)
            nursery.start_soon(receive, b, 2_500_000)
            nursery.start_soon(a.send, PATTERN[:12], memoryview(PATTERN)[12:2_500_000])
            nursery.start_soon(b.send, PATTERN[:600_000], b"", PATTERN[600_000:700_000])
        await close_both(a, b)


@every_pair
async def test_a_finished_stream_is_read_to_its_end_and_answered(fast):
    async with stream_pair(fast) as (a, b):
        await a.send(b"question")
        await a.finish()
        assert await b.read_exactly(8) == b"question"
        with pytest.raises(StreamClosed) as ended:
            await b.read_exactly(4)
        assert ended.value.received == 0
        await b.send(b"answer")
        await b.close()
        with pytest.raises(StreamClosed) as ended:
            await a.read_exactly(100)
        assert ended.value.received == 6
        with pytest.raises(StreamClosed):
            await a.send(b"more")


@every_pair
async def test_a_reset_reaches_the_peers_reader(fast):
    async with stream_pair(fast) as (a, b):
        await a.send(b"x")
        await b.read_exactly(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, StreamReset, b.read_exactly, 10)
            await trio.sleep(0.05)
            await a.reset()
        with pytest.raises(StreamReset):
            await a.send(b"x")
        with pytest.raises(StreamReset):
            await b.send(b"x")
        await close_both(a, b)


async def expect(error, function, *args):
    with pytest.raises(error):
        await function(*args)


@every_pair
async def test_a_lost_connection_is_told_from_an_end(fast):
    async with connection_pair(fast) as (a, b):
        sender, receiver = await open_streams(a, b)
        await sender.send(b"some")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, ConnectionLost, receiver.read_exactly, 1000)
            await trio.sleep(0.05)
            await a.close()
        await until_closed(b)
        with pytest.raises(ConnectionLost):
            await receiver.send(b"x")
        with pytest.raises(ConnectionLost):
            await sender.send(b"x")
        await close_both(sender, receiver)
        await sender.reset()


@every_pair
async def test_a_writer_waits_for_a_reader_that_pauses(fast):
    async with stream_pair(fast) as (a, b):
        sent = trio.Event()

        async def send():
            await a.send(PATTERN)
            sent.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(0.2)
            assert not sent.is_set()
            assert await b.read_exactly(len(PATTERN)) == PATTERN
        await close_both(a, b)


@every_pair
async def test_a_cancelled_send_leaves_other_streams_alone(fast):
    async with connection_pair(fast) as (a, b):
        blocked, unread = await open_streams(a, b)
        with trio.move_on_after(0.2) as scope:
            await blocked.send(PATTERN)
        assert scope.cancelled_caught
        await blocked.reset()
        sender, receiver = await open_streams(a, b)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, PATTERN)
            assert await receiver.read_exactly(len(PATTERN)) == PATTERN
        await close_both(unread, sender, receiver)


@pytest.mark.parametrize("other", [True, False])
async def test_a_cancelled_read_takes_nothing(other):
    async with stream_pair((other, True)) as (a, b):
        for start in range(0, 40_000, 10_000):
            await a.send(PATTERN[start : start + 10_000])
            with trio.move_on_after(0.05) as scope:
                await b.read_exactly(1_000_000)
            assert scope.cancelled_caught
        assert await b.read_exactly(40_000) == PATTERN[:40_000]
        await close_both(a, b)


async def test_a_second_reader_is_a_mistake():
    async with stream_pair() as (a, b), trio.open_nursery() as nursery:
        nursery.start_soon(b.read_exactly, 1)
        await trio.sleep(0.01)
        with pytest.raises(trio.BusyResourceError):
            await b.read_exactly(1)
        await a.send(b"x")


async def test_whole_sends_take_turns():
    async with stream_pair() as (a, b), trio.open_nursery() as nursery:
        for letter in (b"a", b"b", b"c"):
            nursery.start_soon(a.send, letter * 300_000, letter * 300_000)
        data = await b.read_exactly(1_800_000)
        assert [data[i : i + 600_000] == data[i : i + 1] * 600_000 for i in (0, 600_000, 1_200_000)]
        assert {data[0], data[600_000], data[1_200_000]} == set(b"abc")


async def test_it_knows_its_peer_and_protocol():
    async with connection_pair() as (a, b):
        sender, receiver = await open_streams(a, b)
        assert sender.peer_id == a.peer_id
        assert receiver.peer_id == b.peer_id
        assert sender.protocol is None
