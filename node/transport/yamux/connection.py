"""A yamux connection under trio, behind py-libp2p's interface."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio
from libp2p.abc import IMuxedConn
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import IOException
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamError
from loguru import logger
from multiaddr import Multiaddr

from node.transport.conduct import Conduct, Lenient, Offence
from node.transport.noise import NoiseSession
from node.transport.yamux.events import (
    Event,
    GoneAway,
    Opened,
    Pong,
    Readable,
    WasReset,
    Writable,
)
from node.transport.yamux.flow import StreamState
from node.transport.yamux.frames import GoAway, YamuxViolation
from node.transport.yamux.heartbeat import Beat, Heartbeat
from node.transport.yamux.parts import first_bytes
from node.transport.yamux.session import Session, TooManyStreams
from node.transport.yamux.settings import YamuxSettings
from node.transport.yamux.stream import MuxedConnectionLost, YamuxStream

__all__ = ["YamuxConnection"]

_FAREWELL_S: Final = 0.5
"""How long closing waits for the peer to take what is still to be sent."""
_MESSAGES_PER_TURN: Final = 64
"""Noise messages after which other tasks have their turn, even if more are there."""


class YamuxConnection(IMuxedConn):
    """Streams over a noise session.

    Whoever holds the connection runs `start`, which owns its tasks: one receives, one sends control
    frames, one watches that the peer lives. Data is sent by the tasks that write it.

    Args:
        conn: the secured connection, owned from now on.
        peer_id: the peer at its other end.
        settings: limits and times.
        conduct: told if the peer breaks the protocol.

    Attributes:
        session: the state machine.
        failure: why the connection is over; None while it is not.
        heard_at: trio's time at which the peer's last bytes came.
        on_close: called once when the connection is over. py-libp2p's swarm sets it.
    """

    def __init__(
        self,
        conn: NoiseSession,
        peer_id: ID,
        settings: YamuxSettings | None = None,
        conduct: Conduct | None = None,
    ) -> None:
        self.peer_id = peer_id
        self.secured_conn = conn
        self.event_started = trio.Event()
        self.on_close: Callable[[], Awaitable[None]] | None = None
        self.failure: str | None = None
        self.heard_at = trio.current_time()
        self._settings = settings or YamuxSettings()
        self._conduct = conduct or Lenient()
        self.session = Session(
            initiator=conn.is_initiator,
            max_frame=self._settings.max_frame,
            max_window=self._settings.max_window,
            max_inbound=self._settings.max_inbound,
        )
        self._streams: dict[StreamState, YamuxStream] = {}
        self._accept_send, self._accept_receive = trio.open_memory_channel[YamuxStream](math.inf)
        self._sending = trio.Lock()
        self._output_ready = trio.Event()
        self._scope = trio.CancelScope()
        self._is_shut = False
        self._heartbeat = Heartbeat(
            interval_s=self._settings.ping_interval_s, timeout_s=self._settings.ping_timeout_s
        )

    @property
    def is_initiator(self) -> bool:
        """Whether this side opened the connection."""
        return self.secured_conn.is_initiator

    @property
    def is_established(self) -> bool:
        """Whether streams can be opened."""
        return self.event_started.is_set() and self.failure is None

    @property
    def is_closed(self) -> bool:
        """Whether the connection is over."""
        return self.failure is not None

    def rtt(self) -> float:
        """Return the smoothed round-trip time in seconds, 0 before the first ping's answer."""
        return self._heartbeat.round_trip_s

    def get_transport_addresses(self) -> list[Multiaddr]:
        """Return the addresses that the connection goes over."""
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Return whether the connection is direct."""
        return self.secured_conn.get_connection_type()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the peer's host and port."""
        return self.secured_conn.get_remote_address()

    async def start(self) -> None:
        """Run the connection until it is over. Raises nothing but cancellation."""
        try:
            with self._scope:
                await trio.lowlevel.checkpoint_if_cancelled()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._receive)
                    nursery.start_soon(self._send_control)
                    nursery.start_soon(self._watch_liveness)
                    self.event_started.set()
        finally:
            self.event_started.set()
            self.fail("the connection's tasks were cancelled")
            await self._shut_down()

    async def close(self) -> None:
        """Say goodbye, and end the connection and every stream on it."""
        if self.failure is None:
            self.session.go_away(GoAway.NORMAL)
            await self._farewell()
            self.fail("this side closed the connection")
        await self._shut_down()

    async def open_stream(self) -> YamuxStream:
        """Open a stream.

        Raises:
            MuxedStreamError: the peer takes no further streams, for now or for good.
            MuxedConnectionLost: the connection is gone.
        """
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise MuxedConnectionLost(self.failure)
        try:
            state = self.session.open()
        except TooManyStreams as error:
            raise MuxedStreamError(str(error)) from error
        self.flush_soon()
        return self._add(state)

    async def accept_stream(self) -> YamuxStream:
        """Wait for the next stream that the peer opens.

        Raises:
            MuxedConnUnavailable: the connection is over.
        """
        try:
            return await self._accept_receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise MuxedConnUnavailable(self.failure or "the connection is over") from error

    async def send_data(self, stream: YamuxStream, parts: Sequence[memoryview]) -> int:
        """Send one data frame of the bytes at the start of `parts`; return how many it took.

        Cancelling leaves the frame either whole or unsent. Raises as `YamuxStream.write_many`.
        """
        async with self._sending:
            stream.raise_if_unwritable()
            state = stream.state
            if not state.send_window:
                return 0
            header, size = self.session.data_header(state, sum(map(len, parts)))
            with trio.CancelScope(shield=True):
                await self._transmit([memoryview(header), *first_bytes(parts, size)])
        return size

    def flush_soon(self) -> None:
        """Have the control frames sent that the session may hold."""
        if self.session.has_output:
            self._output_ready.set()

    def forget_if_done(self, state: StreamState) -> None:
        """Drop a stream on which nothing can come or go any more."""
        if state.done:
            self._streams.pop(state, None)

    def fail(self, reason: str) -> None:
        """End the connection, and wake everyone who waits for it. The first reason is kept."""
        if self.failure is not None:
            return
        self.failure = reason
        logger.debug("connection to {}: {}", self.peer_id, reason)
        self._accept_send.close()
        for stream in self._streams.values():
            stream.wake()
        self._scope.cancel()

    # Receiving.

    async def _receive(self) -> None:
        secured, session = self.secured_conn, self.session
        try:
            self._act_on(session.receive(secured.take_unread()))
            for count in itertools.count(1):
                if session.peer_gone and not session.streams:
                    break
                if count % _MESSAGES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
                size = await secured.next_message()
                self._heartbeat.heard()
                self.heard_at = trio.current_time()
                target = session.direct(size)
                if target is not None:
                    secured.open_into(target)
                    events = session.put_direct(size)
                else:
                    events = session.receive(secured.open(size))
                self._act_on(events)
                self.flush_soon()
            self.fail("the peer has gone away")
        except YamuxViolation as violation:
            logger.warning("{} breaks the yamux protocol: {}", self.peer_id, violation)
            self._conduct.report(self.peer_id, Offence.VIOLATION, f"yamux: {violation}")
            session.go_away(GoAway.PROTOCOL_ERROR)
            await self._farewell()
            self.fail(f"the peer broke the yamux protocol: {violation}")
        except IOException as error:
            self.fail(str(error))

    def _act_on(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Readable(state):
                    if (stream := self._streams.get(state)) is not None:
                        stream.wake_reader()
                    self.forget_if_done(state)
                case Writable(state):
                    if (stream := self._streams.get(state)) is not None:
                        stream.wake_writer()
                case Opened(state):
                    self._accept_send.send_nowait(self._add(state))
                case WasReset(state):
                    if (stream := self._streams.pop(state, None)) is not None:
                        stream.wake()
                case Pong(value):
                    self._heartbeat.pong(value, trio.current_time())
                case GoneAway(code):
                    logger.debug("{} goes away, code {}", self.peer_id, code)

    def _add(self, state: StreamState) -> YamuxStream:
        stream = YamuxStream(self, state)
        self._streams[state] = stream
        return stream

    # Sending.

    async def _transmit(self, parts: Sequence[memoryview]) -> None:
        """Send pending control frames, then `parts`. The caller holds the sending lock."""
        output = self.session.take_output()
        everything = [memoryview(output), *parts] if output else parts
        if not everything:
            return
        try:
            await self.secured_conn.send(everything)
        except IOException as error:
            self.fail(str(error))
            raise MuxedConnectionLost(str(error)) from error

    async def _send_control(self) -> None:
        while True:
            await self._output_ready.wait()
            self._output_ready = trio.Event()
            try:
                async with self._sending:
                    await self._transmit(())
            except MuxedConnectionLost:
                return

    async def _farewell(self) -> None:
        """Send what control frames there are, if the peer takes them soon."""
        with trio.move_on_after(_FAREWELL_S, shield=True):
            try:
                async with self._sending:
                    await self._transmit(())
            except MuxedConnectionLost as lost:
                logger.debug("no goodbye to {}: {}", self.peer_id, lost)

    # Liveness.

    async def _watch_liveness(self) -> None:
        while True:
            await trio.sleep(self._heartbeat.tick_s)
            match self._heartbeat.tick():
                case Beat.GIVE_UP:
                    self.fail(f"nothing heard for {self._settings.ping_timeout_s:g} s")
                    return
                case Beat.PING:
                    self.session.ping(self._heartbeat.ping(trio.current_time()))
            self._reset_lingering()
            self.flush_soon()

    def _reset_lingering(self) -> None:
        latest = trio.current_time() - self._settings.linger_s
        for state, stream in list(self._streams.items()):
            if stream.closed_at is not None and stream.closed_at < latest:
                self.session.reset(state)
                self.forget_if_done(state)

    # The end.

    async def _shut_down(self) -> None:
        if self._is_shut:
            return
        self._is_shut = True
        with trio.CancelScope(shield=True):
            await self.secured_conn.close()
        if self.on_close is not None:
            try:
                await self.on_close()
            except Exception:
                logger.exception("after the end of the connection to {}", self.peer_id)
