import pytest

from node.transport.yamux.events import GoneAway, Opened, Pong, Readable, WasReset, Writable
from node.transport.yamux.frames import (
    INITIAL_WINDOW,
    BadFrame,
    Flag,
    GoAway,
    Kind,
    WindowExceeded,
    YamuxViolation,
    pack_header,
)
from node.transport.yamux.session import Session, TooManyStreams


def make(initiator=False, **limits):
    return Session(
        initiator=initiator,
        **{"max_frame": 1000, "max_window": INITIAL_WINDOW, "max_inbound": 4, **limits},
    )


def feed(session, kind, flags, stream_id, length, payload=b""):
    return session.receive(memoryview(pack_header(kind, flags, stream_id, length) + payload))


def accepted(session, stream_id=1):
    (event,) = feed(session, Kind.WINDOW_UPDATE, Flag.SYN, stream_id, 0)
    assert isinstance(event, Opened)
    session.take_output()
    return event.stream


def test_opening_sends_syn_and_odd_numbers_are_the_initiators():
    session = make(initiator=True)
    assert [session.open().stream_id, session.open().stream_id] == [1, 3]
    assert session.take_output() == pack_header(Kind.WINDOW_UPDATE, Flag.SYN, 1, 0) + pack_header(
        Kind.WINDOW_UPDATE, Flag.SYN, 3, 0
    )
    assert make().open().stream_id == 2


def test_a_stream_that_is_opened_is_acknowledged():
    session = make()
    events = feed(session, Kind.DATA, Flag.SYN, 1, 2, b"hi")
    opened, readable = events
    assert isinstance(opened, Opened)
    assert readable == Readable(opened.stream)
    assert session.take_output() == pack_header(Kind.WINDOW_UPDATE, Flag.ACK, 1, 0)
    assert session.take(opened.stream) == b"hi"


def test_data_headers_are_bounded_by_window_frame_and_wish():
    session = make(max_frame=INITIAL_WINDOW - 10)
    stream = accepted(session)
    assert session.data_header(stream, 5)[1] == 5
    assert session.data_header(stream, 1 << 30)[1] == INITIAL_WINDOW - 10
    header, size = session.data_header(stream, 1 << 30)
    assert (header, size) == (pack_header(Kind.DATA, 0, 1, 5), 5)
    with pytest.raises(ValueError, match="nothing can be sent"):
        session.data_header(stream, 1)
    (event,) = feed(session, Kind.WINDOW_UPDATE, 0, 1, 7)
    assert event == Writable(stream)
    assert session.data_header(stream, 1 << 30)[1] == 7


def test_half_closed_both_ways_a_stream_is_over():
    session = make()
    stream = accepted(session)
    session.finish(stream)
    session.finish(stream)
    assert session.take_output() == pack_header(Kind.WINDOW_UPDATE, Flag.FIN, 1, 0)
    with pytest.raises(ValueError, match="closed for sending"):
        session.data_header(stream, 1)
    assert session.streams == {1: stream}
    assert feed(session, Kind.DATA, Flag.FIN, 1, 4, b"last") == [Readable(stream), Readable(stream)]
    assert session.streams == {}
    assert session.take(stream) == b"last"


def test_a_reset_ends_the_stream_and_drops_its_bytes():
    session = make()
    stream = accepted(session)
    events = feed(session, Kind.DATA, Flag.RST, 1, 3, b"xyz")
    assert events[-1] == WasReset(stream)
    assert stream.reset
    assert stream.buffered == 0
    assert session.streams == {}
    session.reset(stream)
    assert not session.has_output


def test_what_was_on_its_way_to_a_reset_stream_is_skipped():
    session = make()
    stream = accepted(session)
    session.receive(memoryview(pack_header(Kind.DATA, 0, 1, 5) + b"ab"))
    session.reset(stream)
    assert session.take_output() == pack_header(Kind.WINDOW_UPDATE, Flag.RST, 1, 0)
    assert session.receive(memoryview(b"cde")) == []
    assert feed(session, Kind.DATA, 0, 1, 3, b"fgh") == []
    assert feed(session, Kind.WINDOW_UPDATE, Flag.FIN, 1, 9) == []
    assert stream.buffered == 0
    assert feed(session, Kind.PING, Flag.ACK, 0, 1) == [Pong(1)]


def test_pings_are_answered_before_all_else():
    session = make()
    assert feed(session, Kind.PING, Flag.SYN, 0, 77) == []
    assert session.take_output() == pack_header(Kind.PING, Flag.ACK, 0, 77)
    session.ping(5)
    assert session.take_output() == pack_header(Kind.PING, Flag.SYN, 0, 5)


def test_after_go_away_no_stream_is_opened_and_the_open_ones_go_on():
    session = make()
    stream = accepted(session)
    assert feed(session, Kind.GO_AWAY, 0, 0, GoAway.NORMAL) == [GoneAway(0)]
    with pytest.raises(TooManyStreams):
        session.open()
    feed(session, Kind.DATA, 0, 1, 2, b"on")
    assert session.take(stream) == b"on"


def test_streams_over_the_limit_are_reset_and_their_data_skipped():
    session = make(max_inbound=1)
    stream = accepted(session)
    assert feed(session, Kind.DATA, Flag.SYN, 3, 4, b"more") == []
    assert session.take_output() == pack_header(Kind.WINDOW_UPDATE, Flag.RST, 3, 0)
    session.reset(stream)
    assert accepted(session, 5).stream_id == 5


def test_streams_that_the_peer_never_takes_are_an_error_and_not_a_hang():
    session = make(initiator=True)
    streams = [session.open() for _ in range(256)]
    with pytest.raises(TooManyStreams, match="256"):
        session.open()
    feed(session, Kind.WINDOW_UPDATE, Flag.ACK, 1, 0)
    session.open()
    session.reset(streams[1])
    session.open()


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (pack_header(Kind.WINDOW_UPDATE, Flag.SYN, 1, 0), "which is open"),
        (pack_header(Kind.WINDOW_UPDATE, Flag.SYN, 2, 0), "this side's"),
        (pack_header(Kind.WINDOW_UPDATE, 0, 1, 2**32 - 1), "overflows"),
        (pack_header(Kind.DATA, 0, 1, INITIAL_WINDOW + 1), "window"),
    ],
)
def test_frames_that_cannot_come_now_are_refused(frame, error):
    session = make()
    accepted(session)
    with pytest.raises(YamuxViolation, match=error):
        session.receive(memoryview(frame))


def test_the_window_is_enforced_across_frames():
    session = make()
    stream = accepted(session)
    feed(session, Kind.DATA, 0, 1, INITIAL_WINDOW, bytes(INITIAL_WINDOW))
    session.take(stream, INITIAL_WINDOW // 2 - 1)
    with pytest.raises(WindowExceeded):
        feed(session, Kind.DATA, 0, 1, 1, b"x")


def test_data_after_fin_is_refused():
    session = make()
    accepted(session)
    feed(session, Kind.WINDOW_UPDATE, Flag.FIN, 1, 0)
    with pytest.raises(BadFrame, match="after its end"):
        feed(session, Kind.DATA, 0, 1, 1, b"x")


def test_a_peer_that_asks_but_does_not_read_is_cut_off():
    session = make()
    pings = memoryview(pack_header(Kind.PING, Flag.SYN, 0, 1) * 1000)
    for _ in range((1 << 20) // len(pings)):
        session.receive(pings)
    session.take_output()
    for _ in range((1 << 20) // len(pings)):
        session.receive(pings)
    with pytest.raises(YamuxViolation, match="does not read"):
        session.receive(memoryview(bytes(pings) * 2))


@pytest.mark.parametrize("limits", [{"max_frame": 0}, {"max_window": INITIAL_WINDOW - 1}])
def test_limits_that_yamux_does_not_allow_are_refused(limits):
    with pytest.raises(ValueError, match="yamux"):
        make(**limits)
