"""The connection against peers that lag, vanish or break the protocol."""

from contextlib import asynccontextmanager

import pytest
import trio
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamClosed,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)

from node.transport.yamux.connection import YamuxConnection
from node.transport.yamux.frames import INITIAL_WINDOW, Flag, GoAway, Kind, pack_header
from node.transport.yamux.settings import YamuxSettings
from node.transport.yamux.stream import MuxedConnectionLost
from tests.support.transport import (
    connection_pair,
    fast_pair,
    fast_session,
    session_pair,
    until_closed,
)

SYN = pack_header(Kind.WINDOW_UPDATE, Flag.SYN, 1, 0)
IMPATIENT = YamuxSettings(ping_interval_s=0.1, ping_timeout_s=0.4, linger_s=0.1)


@asynccontextmanager
async def against_bare_session(settings=None):
    """Run a connection, the responder's, whose peer is a bare noise session."""
    peer, session = map(fast_session, await session_pair())
    connection = YamuxConnection(session, session.get_remote_peer(), settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.start)
        await connection.event_started.wait()
        yield peer, connection
        await connection.close()
        await peer.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        pytest.param(b"\x01" + bytes(11), "version", id="version"),
        pytest.param(b"\x00\x09" + bytes(10), "type 9", id="type"),
        pytest.param(SYN + SYN, "which is open", id="open twice"),
        pytest.param(SYN + pack_header(Kind.DATA, 0, 1, INITIAL_WINDOW + 1), "window", id="window"),
    ],
)
async def test_a_violation_ends_the_connection_with_go_away(frames, reason):
    async with against_bare_session() as (peer, connection):
        await peer.write(frames)
        await until_closed(connection)
        assert reason in str(connection.failure)
        farewell = b""
        while len(farewell) < 12 or farewell[-12:] == pack_header(
            Kind.WINDOW_UPDATE, Flag.ACK, 1, 0
        ):
            farewell += await peer.read()
        assert farewell[-12:] == pack_header(Kind.GO_AWAY, 0, 0, GoAway.PROTOCOL_ERROR)


async def test_forged_bytes_end_the_connection_and_wake_everyone():
    async with against_bare_session() as (peer, connection):
        await peer.write(SYN)
        stream = await connection.accept_stream()

        async def read_into():
            with pytest.raises(MuxedConnectionLost):
                await stream.read_into(memoryview(bytearray(100)))

        async def write():
            with pytest.raises(MuxedConnectionLost):
                await stream.write(bytes(2 * INITIAL_WINDOW))

        async def accept():
            with pytest.raises(MuxedConnUnavailable):
                await connection.accept_stream()

        async with trio.open_nursery() as nursery:
            for task in (read_into, write, accept):
                nursery.start_soon(task)
            await trio.sleep(0.05)
            await peer._stream.send_all(b"\x00\x20" + bytes(32))
        assert "authentication" in str(connection.failure)
        with pytest.raises(MuxedConnectionLost):
            await connection.open_stream()


async def test_bytes_that_came_before_the_loss_are_still_read():
    async with against_bare_session() as (peer, connection):
        await peer.write(SYN + pack_header(Kind.DATA, 0, 1, 3) + b"abc")
        stream = await connection.accept_stream()
        await peer.close()
        await until_closed(connection)
        assert await stream.read() == b"abc"
        with pytest.raises(MuxedConnectionLost):
            await stream.read()


async def test_a_stream_that_ended_before_the_loss_has_ended():
    async with against_bare_session() as (peer, connection):
        await peer.write(SYN + pack_header(Kind.DATA, Flag.FIN, 1, 3) + b"abc")
        stream = await connection.accept_stream()
        await peer.close()
        await until_closed(connection)
        assert await stream.read_into(memoryview(bytearray(5))) == 3
        with pytest.raises(MuxedStreamEOF):
            await stream.read()


async def test_a_silent_peer_is_noticed():
    async with against_bare_session(IMPATIENT) as (_, connection):
        await until_closed(connection)
        assert "nothing heard" in str(connection.failure)


async def test_a_peer_that_stops_reading_does_not_hold_a_writer_for_ever():
    async with against_bare_session(IMPATIENT) as (peer, connection):
        await peer.write(SYN + pack_header(Kind.WINDOW_UPDATE, 0, 1, 1 << 30))
        stream = await connection.accept_stream()
        with trio.fail_after(20), pytest.raises(MuxedConnectionLost):
            await stream.write(bytes(64 << 20))


async def test_two_that_live_stay_connected_and_know_their_round_trip():
    async with fast_pair(IMPATIENT) as (a, b):
        await trio.sleep(1.2)
        assert not a.is_closed
        assert not b.is_closed
        assert a.rtt() > 0


async def test_a_stock_peer_answers_pings():
    async with connection_pair((True, False), IMPATIENT) as (a, _):
        assert isinstance(a, YamuxConnection)
        await trio.sleep(1.2)
        assert not a.is_closed
        assert a.rtt() > 0


async def test_a_slow_reader_holds_up_its_own_stream_only():
    async with fast_pair() as (a, b):
        stuck = await a.open_stream()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stuck.write, bytes(10 * INITIAL_WINDOW))
            unread = await b.accept_stream()
            moving = await a.open_stream()
            nursery.start_soon(moving.write, bytes(40 * INITIAL_WINDOW))
            stream = await b.accept_stream()
            assert await stream.read_into(memoryview(bytearray(40 * INITIAL_WINDOW)))
            assert unread.state.buffered <= INITIAL_WINDOW
            nursery.cancel_scope.cancel()


async def test_a_cancelled_write_has_sent_whole_frames_only():
    async with fast_pair() as (a, b):
        first = await a.open_stream()
        received = await b.accept_stream()
        for delay in (0, 0, 0.0005, 0.001, 0.002, 0.004):
            with trio.move_on_after(delay):
                await first.write(bytes(8 * INITIAL_WINDOW))
            while received.state.buffered:
                await received.read()
        other = await a.open_stream()
        stream = await b.accept_stream()
        await other.write(b"all is well")
        assert await stream.read() == b"all is well"


async def test_closed_streams_are_forgotten_and_lingering_ones_reset():
    async with fast_pair(IMPATIENT) as (a, b):
        opened = await a.open_stream()
        accepted = await b.accept_stream()
        await opened.close()
        with pytest.raises(MuxedStreamEOF):
            await accepted.read()
        assert a.session.streams
        await trio.sleep(0.5)
        with pytest.raises(MuxedStreamReset):
            await accepted.write(b"x")
        assert not a.session.streams
        assert not b.session.streams


async def test_streams_never_closed_do_not_hang_the_next():
    async with fast_pair(YamuxSettings(max_inbound=2000)) as (a, b):
        kept = []
        with trio.fail_after(30):
            for _ in range(600):
                kept.append(await a.open_stream())
                kept.append(await b.accept_stream())
        assert len(a.session.streams) == 600


async def test_a_peer_that_takes_no_stream_is_an_error():
    async with against_bare_session() as (_, connection):
        for _ in range(256):
            await connection.open_stream()
        with pytest.raises(MuxedStreamError, match="wait for the peer"):
            await connection.open_stream()


async def test_operations_after_close_say_so():
    async with fast_pair() as (a, b):
        stream = await a.open_stream()
        accepted = await b.accept_stream()
        async with stream:
            await stream.write(b"x")
        with pytest.raises(MuxedStreamClosed):
            await stream.write(b"y")
        assert await accepted.read(0) == b""
        assert await accepted.read(5) == b"x"
        with pytest.raises(NotImplementedError):
            stream.set_deadline(1)


async def test_after_go_away_the_last_stream_ends_the_connection():
    async with against_bare_session() as (peer, connection):
        await peer.write(SYN + pack_header(Kind.GO_AWAY, 0, 0, GoAway.NORMAL))
        stream = await connection.accept_stream()
        await stream.close()
        with pytest.raises(MuxedStreamError):
            await connection.open_stream()
        await peer.write(pack_header(Kind.DATA, Flag.FIN, 1, 2) + b"ok")
        await until_closed(connection)
        assert await stream.read() == b"ok"


async def test_close_calls_back_once_even_if_that_fails():
    calls = []

    async def on_close():
        calls.append(1)
        raise RuntimeError("a listener's mistake")

    async with fast_pair() as (a, _):
        a.on_close = on_close
        await a.close()
        await a.close()
    assert calls == [1]
