"""Random transfers over one connection: sizes, pauses, cancellations, resets; against stock too."""

import os
import random

import pytest
import trio
from libp2p.abc import IMuxedConn
from libp2p.stream_muxer.yamux.yamux import YamuxStream as StockStream
from loguru import logger

from node.transport.errors import StreamClosed, StreamReset
from node.transport.streams import ByteStream
from node.transport.yamux.connection import YamuxConnection
from node.transport.yamux.stream import YamuxStream
from tests.support.transport import as_byte_stream, connection_pair

PATTERN = bytes(i * 7 % 251 for i in range(251)) * 8000
PAIRS = [(True, True), (True, False), (False, True)]
ENDS = ["finish", "finish", "finish", "sender resets", "receiver resets", "sender is cancelled"]


def expected(seed: int, start: int, size: int) -> bytes:
    offset = (seed + start) % 251
    return PATTERN[offset : offset + size]


class Transfer:
    """One stream's life, as drawn from the generator."""

    def __init__(self, rng: random.Random) -> None:
        self.seed = rng.randrange(251)
        self.size = rng.choice([0, 1, 100, 5000, 70_000, 300_000, 1_500_000])
        self.end = rng.choice(ENDS)
        self.stop_at = rng.randrange(self.size + 1)
        self.rng = random.Random(rng.random())

    async def send(self, stream: ByteStream) -> None:
        await stream.send(self.seed.to_bytes(1, "big"))
        goal = self.stop_at if self.end == "sender resets" else self.size
        sent = 0
        try:
            with trio.CancelScope() as scope:
                if self.end == "sender is cancelled":
                    scope.deadline = trio.current_time() + self.rng.random() * 0.02
                while sent < goal:
                    first = min(goal - sent, self.rng.choice([1, 700, 66_000, 1_400_000]))
                    second = min(goal - sent - first, self.rng.choice([0, 12, 70_000]))
                    data = expected(self.seed, sent, first + second)
                    await stream.send(data[:first], memoryview(data)[first:])
                    sent += first + second
            if self.end in ("sender resets", "sender is cancelled"):
                await stream.reset()
                return
            await stream.finish()
            with pytest.raises(StreamClosed):
                await stream.read_exactly(1)
            await stream.close()
        except StreamReset:
            assert self.end == "receiver resets"
            await stream.reset()

    async def receive(self, stream: ByteStream) -> None:
        goal = self.stop_at if self.end == "receiver resets" else self.size
        got = 0
        try:
            seed = (await stream.read_exactly(1))[0]
            assert seed == self.seed
            while got < goal:
                buffer = bytearray(min(goal - got, self.rng.choice([1, 100, 65_519, 1_000_000])))
                await self.fill(stream, buffer)
                assert buffer == expected(seed, got, len(buffer))
                got += len(buffer)
            if self.end == "receiver resets":
                await stream.reset()
                return
            with pytest.raises(StreamClosed):
                await stream.read_exactly(1)
            await stream.close()
        except StreamReset:
            assert self.end in ("sender resets", "sender is cancelled")
            await stream.reset()

    async def fill(self, stream: ByteStream, buffer: bytearray) -> None:
        await trio.sleep(self.rng.choice([0, 0, 0, 0.001, 0.01]))
        # Over stock yamux a cancelled read loses bytes, as the class says.
        while stream.is_fast and self.rng.random() < 0.3:
            with trio.move_on_after(self.rng.random() * 0.002):
                await stream.read_exactly_into(buffer)
                return
        await stream.read_exactly_into(buffer)


async def transfer(life: Transfer, opener: IMuxedConn, accepted: dict, slot) -> None:
    async with slot:
        muxed = await opener.open_stream()
        assert isinstance(muxed, YamuxStream | StockStream)
        stream, number = as_byte_stream(muxed), muxed.stream_id
        if number not in accepted:
            accepted[number] = trio.Event()
        waiting = accepted[number]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.send, stream)
            if isinstance(waiting, trio.Event):
                await waiting.wait()
            await life.receive(accepted.pop(number))


async def accept(connection: IMuxedConn, accepted: dict) -> None:
    while True:
        muxed = await connection.accept_stream()
        assert isinstance(muxed, YamuxStream | StockStream)
        number = muxed.stream_id
        waiting = accepted.get(number)
        accepted[number] = as_byte_stream(muxed)
        if waiting is not None:
            waiting.set()


async def fuzz(fast: tuple[bool, bool], seed: int, transfers: int) -> None:
    rng = random.Random(seed)
    async with connection_pair(fast) as pair, trio.open_nursery() as nursery:
        accepted: dict = {}
        slot = trio.CapacityLimiter(8)
        for connection in pair:
            nursery.start_soon(accept, connection, accepted)
        async with trio.open_nursery() as transferring:
            for _ in range(transfers):
                opener = rng.choice(pair)
                transferring.start_soon(transfer, Transfer(rng), opener, accepted, slot)
        await trio.sleep(0.1)
        for connection in pair:
            assert not connection.is_closed
            if isinstance(connection, YamuxConnection):
                assert connection.session.streams == {}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("fast", PAIRS)
async def test_random_transfers(fast):
    with trio.fail_after(120):
        await fuzz(fast, seed=1, transfers=100)


@pytest.mark.soak
@pytest.mark.parametrize("fast", PAIRS)
async def test_random_transfers_for_long(fast):
    seed = int.from_bytes(os.urandom(4), "big")
    for number in range(40):
        logger.info("seed {}", seed + number)
        with trio.fail_after(300):
            await fuzz(fast, seed + number, transfers=100)
