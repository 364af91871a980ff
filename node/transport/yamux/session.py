"""yamux as a state machine without I/O: received bytes in; events, and control frames to send, out.

The caller receives bytes and feeds them (`receive`, or `direct` and `put_direct` to spare a copy),
acts on the events, sends `take_output()` whenever it is not empty, and sends data as the headers
that `data_header` grants, each followed at once by as many bytes as it says. Everything goes onto
the wire in the order of these calls.
"""

from __future__ import annotations

from typing import Final

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
from node.transport.yamux.frames import (
    HEADER_SIZE,
    INITIAL_WINDOW,
    BadFrame,
    Flag,
    GoAway,
    Header,
    Kind,
    YamuxViolation,
    pack_header,
    unpack_header,
)

__all__ = ["Session", "TooManyStreams"]

_MAX_OUTPUT: Final = 1 << 20
"""Bytes of control frames that may wait for a peer that makes us answer but does not read."""
_MAX_UNACKNOWLEDGED: Final = 256
_MAX_STREAM_ID: Final = 2**32 - 1


class TooManyStreams(Exception):
    """No further stream can be opened, for now or on this session."""


class Session:
    """One side of a yamux session.

    Args:
        initiator: whether this side opened the connection; it then has the odd stream numbers.
        max_frame: limit in bytes of the data frames that this side sends.
        max_window: limit in bytes of each stream's receive window.
        max_inbound: streams that the peer may have open at a time; more are reset.

    Attributes:
        streams: the streams on which frames can still come or go, by number.
        peer_gone: the peer has said that it goes away.
    """

    def __init__(
        self, *, initiator: bool, max_frame: int, max_window: int, max_inbound: int
    ) -> None:
        if max_frame < 1 or max_window < INITIAL_WINDOW:
            raise ValueError("a frame has a byte at least, a window those that yamux begins with")
        self.streams: dict[int, StreamState] = {}
        self.peer_gone = False
        self._max_frame = max_frame
        self._max_window = max_window
        self._max_inbound = max_inbound
        self._next_id = 1 if initiator else 2
        self._own_parity = self._next_id % 2
        self._inbound = 0
        self._unacknowledged = 0
        self._output = bytearray()
        self._header = bytearray()
        self._remaining = 0
        self._flags = 0
        self._current: StreamState | None = None

    # What this side does.

    def open(self) -> StreamState:
        """Open a stream; data may follow at once.

        Raises:
            TooManyStreams: the peer goes away, has not acknowledged the last 256, or the numbers
                are used up.
        """
        if self.peer_gone:
            raise TooManyStreams("the peer takes no further streams")
        if self._unacknowledged >= _MAX_UNACKNOWLEDGED:
            raise TooManyStreams(f"{self._unacknowledged} streams wait for the peer to take them")
        if self._next_id > _MAX_STREAM_ID:
            raise TooManyStreams("the session has used up its stream numbers")
        stream = StreamState(self._next_id, max_window=self._max_window)
        self._next_id += 2
        self._unacknowledged += 1
        self.streams[stream.stream_id] = stream
        self._put_output(Kind.WINDOW_UPDATE, Flag.SYN, stream.stream_id, 0)
        return stream

    def data_header(self, stream: StreamState, wanted: int) -> tuple[bytes, int]:
        """Return the header of a data frame, and how many of the `wanted` bytes follow it.

        Raises:
            ValueError: the stream is closed for sending, or its window is.
        """
        if stream.reset or stream.finished_sending:
            raise ValueError(f"stream {stream.stream_id} is closed for sending")
        size = min(wanted, stream.send_window, self._max_frame)
        if size < 1:
            raise ValueError(f"nothing can be sent on stream {stream.stream_id} now")
        stream.send_window -= size
        return pack_header(Kind.DATA, 0, stream.stream_id, size), size

    def finish(self, stream: StreamState) -> None:
        """Close the stream for sending. Does nothing if it is."""
        if stream.finished_sending or stream.reset:
            return
        stream.finished_sending = True
        self._put_output(Kind.WINDOW_UPDATE, Flag.FIN, stream.stream_id, 0)
        self._forget_if_done(stream)

    def reset(self, stream: StreamState) -> None:
        """Give up the stream in both directions. Does nothing if it is over."""
        if stream.done:
            stream.drop_buffer()
            return
        self._put_output(Kind.WINDOW_UPDATE, Flag.RST, stream.stream_id, 0)
        self._set_reset(stream)

    def take(self, stream: StreamState, limit: int | None = None) -> bytes:
        """Return up to `limit` bytes of what the stream has buffered, and credit the peer."""
        data, credit = stream.take(limit)
        self._put_credit(stream, credit)
        return data

    def attach(self, stream: StreamState, target: memoryview) -> None:
        """Let the stream's next bytes go to `target`, until `StreamState.detach`."""
        self._put_credit(stream, stream.attach(target))

    def ping(self, value: int) -> None:
        """Ask for a `Pong` with `value`, of 32 bits."""
        self._put_output(Kind.PING, Flag.SYN, 0, value)

    def go_away(self, code: GoAway) -> None:
        """Say that this side ends the session."""
        self._put_output(Kind.GO_AWAY, 0, 0, code)

    @property
    def has_output(self) -> bool:
        """Whether `take_output` has something."""
        return bool(self._output)

    def take_output(self) -> bytes:
        """Return the control frames that are to be sent before anything else."""
        output = bytes(self._output)
        self._output.clear()
        return output

    # What the peer does.

    def direct(self, length: int) -> memoryview | None:
        """Return where the next `length` bytes may be put, if they all belong to one target."""
        if self._current is None or length > self._remaining:
            return None
        return self._current.direct(length)

    def put_direct(self, length: int) -> list[Event]:
        """Take note that the next `length` bytes are where `direct` has said. As `receive`."""
        events: list[Event] = []
        stream = self._current
        if stream is not None:
            self._put_credit(stream, stream.put_direct(length))
            self._advance(length, stream.target_full, events)
        return events

    def receive(self, data: memoryview) -> list[Event]:
        """Take the next bytes that the peer has sent, and return what they mean.

        Raises:
            YamuxViolation: the peer broke the protocol.
        """
        events: list[Event] = []
        while data:
            if self._remaining:
                payload = data[: self._remaining]
                self._receive_payload(payload, events)
                data = data[len(payload) :]
                continue
            missing = HEADER_SIZE - len(self._header)
            self._header += data[:missing]
            data = data[missing:]
            if len(self._header) == HEADER_SIZE:
                header = unpack_header(self._header)
                self._header.clear()
                self._receive_header(header, events)
        return events

    def _receive_payload(self, payload: memoryview, events: list[Event]) -> None:
        stream = self._current
        if stream is not None and not stream.reset:
            self._put_credit(stream, stream.put(payload))
            wake = stream.buffered > 0 or stream.target_full
        else:
            wake = False
        self._advance(len(payload), wake, events)

    def _advance(self, length: int, wake: bool, events: list[Event]) -> None:
        self._remaining -= length
        stream = self._current
        if stream is None:
            return
        if wake:
            events.append(Readable(stream))
        if self._remaining == 0:
            self._current = None
            self._apply_end(stream, self._flags, events)

    def _receive_header(self, header: Header, events: list[Event]) -> None:
        match header.kind:
            case Kind.DATA | Kind.WINDOW_UPDATE:
                self._receive_stream_frame(header, events)
            case Kind.PING if header.flags & Flag.SYN:
                self._answer(Kind.PING, Flag.ACK, 0, header.length)
            case Kind.PING:
                events.append(Pong(header.length))
            case _:
                self.peer_gone = True
                events.append(GoneAway(header.length))

    def _receive_stream_frame(self, header: Header, events: list[Event]) -> None:
        if header.flags & Flag.SYN:
            stream = self._accept(header.stream_id, events)
        else:
            # Frames of a stream that is over here were sent before the peer knew.
            stream = self.streams.get(header.stream_id)
        if stream is not None and header.flags & Flag.ACK and not stream.acknowledged:
            self._acknowledged(stream)
        if header.kind == Kind.DATA and header.length:
            if stream is not None:
                stream.announce(header.length)
            self._current, self._remaining = stream, header.length
            self._flags = header.flags
            return
        if stream is None:
            return
        if header.kind == Kind.WINDOW_UPDATE and header.length:
            stream.grow_send_window(header.length)
            events.append(Writable(stream))
        self._apply_end(stream, header.flags, events)

    def _accept(self, stream_id: int, events: list[Event]) -> StreamState | None:
        if stream_id % 2 == self._own_parity:
            raise BadFrame(f"the peer opens stream {stream_id}, a number of this side's")
        if stream_id in self.streams:
            raise BadFrame(f"the peer opens stream {stream_id}, which is open")
        if self._inbound >= self._max_inbound:
            self._answer(Kind.WINDOW_UPDATE, Flag.RST, stream_id, 0)
            return None
        stream = StreamState(stream_id, max_window=self._max_window)
        stream.acknowledged = True
        self.streams[stream_id] = stream
        self._inbound += 1
        self._answer(Kind.WINDOW_UPDATE, Flag.ACK, stream_id, 0)
        events.append(Opened(stream))
        return stream

    def _apply_end(self, stream: StreamState, flags: int, events: list[Event]) -> None:
        if stream.reset:
            return
        if flags & Flag.RST:
            self._set_reset(stream)
            events.append(WasReset(stream))
        elif flags & Flag.FIN and not stream.finished_receiving:
            stream.finished_receiving = True
            events.append(Readable(stream))
            self._forget_if_done(stream)

    # Book-keeping.

    def _set_reset(self, stream: StreamState) -> None:
        stream.reset = True
        stream.drop_buffer()
        self._forget_if_done(stream)

    def _acknowledged(self, stream: StreamState) -> None:
        stream.acknowledged = True
        self._unacknowledged -= 1

    def _forget_if_done(self, stream: StreamState) -> None:
        if not stream.done or self.streams.pop(stream.stream_id, None) is None:
            return
        if stream.stream_id % 2 != self._own_parity:
            self._inbound -= 1
        elif not stream.acknowledged:
            self._acknowledged(stream)

    def _put_credit(self, stream: StreamState, credit: int) -> None:
        if credit:
            self._put_output(Kind.WINDOW_UPDATE, 0, stream.stream_id, credit)

    def _answer(self, kind: Kind, flags: int, stream_id: int, length: int) -> None:
        if len(self._output) > _MAX_OUTPUT:
            raise YamuxViolation("the peer asks for answers but does not read them")
        self._put_output(kind, flags, stream_id, length)

    def _put_output(self, kind: Kind, flags: int, stream_id: int, length: int) -> None:
        self._output += pack_header(kind, flags, stream_id, length)
