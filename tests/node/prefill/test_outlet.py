"""Transfers that take turns at an interface, over streams of this process."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import MockClock

from node.prefill.outlet import PIECE, Outlet, Outlets
from node.prefill.sharing import STALL_S
from node.transport.streams import BytesLike, ByteStream
from tests.support.transport import stream_pair

NEVER = 1e9


class Link:
    """Sends one piece at a time, and takes a second for a piece of `PIECE` bytes."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._lock = trio.Lock()

    def stream(self, name: str, *, room: int = 1 << 30, stops: bool = False) -> ByteStream:
        link = self

        class Stream:
            async def room(self) -> int:
                await trio.lowlevel.checkpoint()
                return room

            async def send(self, *buffers: BytesLike) -> None:
                if stops:
                    await trio.sleep_forever()
                async with link._lock:
                    await trio.sleep(sum(map(len, buffers)) / PIECE)
                link.sent.append(name * max(1, round(sum(map(len, buffers)) / PIECE)))

        return cast("ByteStream", Stream())


async def test_what_is_sent_arrives_in_one_piece():
    header, payload = b"header", bytes(range(256)) * 20_000
    outlets = Outlets()
    async with stream_pair() as (sender, receiver), trio.open_nursery() as nursery:

        async def send(outlet: Outlet) -> None:
            await outlet.send(sender, header, payload, b"", b"end")

        with outlets.transfer("lo", NEVER, 1), outlets.transfer("lo", NEVER, 1) as outlet:
            nursery.start_soon(send, outlet)
            expected = header + payload + b"end"
            assert await receiver.read_exactly(len(expected)) == expected


async def test_a_chunk_alone_goes_as_a_whole_and_shared_by_turns(autojump_clock: MockClock):
    link, outlets = Link(), Outlets()
    chunk = bytes(4 * PIECE)
    with outlets.transfer("net0", NEVER, len(chunk)) as outlet:
        await outlet.send(link.stream("a"), chunk)
    assert link.sent == ["aaaa"]
    link.sent.clear()

    async def send(name: str, interface: str) -> None:
        with outlets.transfer(interface, NEVER, len(chunk)) as outlet:
            await trio.sleep(0.1)
            await outlet.send(link.stream(name), chunk)

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(send, name, "net0")
    said = "".join(link.sent)
    for name in "abc":
        # Whoever is served first is served again only when all have been.
        assert set(said[:3]) == set("abc"), said
        assert said.count(name) == 4


async def test_interfaces_have_nothing_to_do_with_each_other(autojump_clock: MockClock):
    link, outlets = Link(), Outlets()
    with (
        outlets.transfer("net0", NEVER, PIECE),
        outlets.transfer("net1", NEVER, PIECE) as outlet,
    ):
        await outlet.send(link.stream("a"), bytes(2 * PIECE))
    assert link.sent == ["aa"]


async def test_a_stopped_receiver_and_one_that_gives_up_leave_room(autojump_clock: MockClock):
    link, outlets = Link(), Outlets()
    with outlets.transfer("net0", NEVER, PIECE) as waiting:

        async def stand_still(seconds: float) -> None:
            with (
                trio.move_on_after(seconds),
                outlets.transfer("net0", NEVER, PIECE) as outlet,
            ):
                await outlet.send(link.stream("x", stops=True), bytes(PIECE))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(stand_still, 1000)
            await trio.sleep(0.01)
            with trio.fail_after(5 * STALL_S + 2):
                await waiting.send(link.stream("a"), bytes(PIECE))
            nursery.cancel_scope.cancel()
        # They are gone, and owed nothing.
        with trio.fail_after(2.1):
            await waiting.send(link.stream("a"), bytes(2 * PIECE))
    assert "".join(link.sent) == "aaa"


@pytest.mark.parametrize("room", [1000, PIECE // 2])
async def test_a_turn_is_no_longer_than_what_the_receiver_takes(
    room: int, autojump_clock: MockClock
):
    link, outlets, sizes = Link(), Outlets(), list[int]()
    stream = link.stream("a", room=room)
    send = stream.send

    async def note(*buffers: BytesLike) -> None:
        sizes.append(sum(map(len, buffers)))
        await send(*buffers)

    stream.send = note
    with outlets.transfer("net0", NEVER, 1) as outlet:
        await outlet.send(stream, bytes(100), bytes(3 * room))
    assert sum(sizes) == 100 + 3 * room
    assert max(sizes) == room
