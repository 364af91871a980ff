import pytest

from node.transport.yamux.flow import StreamState
from node.transport.yamux.frames import INITIAL_WINDOW, MAX_U32, BadFrame, WindowExceeded

MAX_WINDOW = 1 << 20


@pytest.fixture
def stream():
    return StreamState(1, max_window=MAX_WINDOW)


def receive(stream, data):
    stream.announce(len(data))
    return stream.put(memoryview(data))


def test_the_peer_may_fill_the_window_and_not_a_byte_more(stream):
    receive(stream, bytes(INITIAL_WINDOW))
    with pytest.raises(WindowExceeded):
        stream.announce(1)


def test_unread_bytes_earn_no_credit(stream):
    assert receive(stream, bytes(INITIAL_WINDOW)) == 0
    assert stream.receive_window == 0


def test_credit_comes_by_halves_of_the_window(stream):
    receive(stream, bytes(INITIAL_WINDOW))
    assert stream.take(INITIAL_WINDOW // 2 - 1)[1] == 0
    assert stream.take(1)[1] == INITIAL_WINDOW // 2


def test_the_window_doubles_for_a_reader_that_keeps_up_and_stops_at_its_limit(stream):
    sizes = []
    for _ in range(5):
        receive(stream, bytes(stream.receive_window))
        stream.take(None)
        sizes.append(stream.receive_window)
    assert sizes == [2 * INITIAL_WINDOW, 4 * INITIAL_WINDOW, MAX_WINDOW, MAX_WINDOW, MAX_WINDOW]


def test_the_window_stays_for_a_reader_that_lags(stream):
    receive(stream, bytes(INITIAL_WINDOW))
    stream.take(INITIAL_WINDOW - 1)
    assert stream.receive_window == INITIAL_WINDOW - 1


def test_a_target_gets_buffered_bytes_first_and_the_rest_is_buffered(stream):
    receive(stream, b"abc")
    target = bytearray(5)
    stream.attach(memoryview(target))
    assert stream.direct(3) is None
    view = stream.direct(1)
    stream.announce(4)
    view[:] = b"d"
    stream.put_direct(1)
    stream.put(memoryview(b"efg"))
    assert stream.target_full
    assert target == b"abcde"
    assert stream.detach(give_back=False) == 5
    assert stream.take(None)[0] == b"fg"


def test_bytes_given_back_are_read_again_in_order_and_credited_once(stream):
    half = bytes(range(256)) * (INITIAL_WINDOW // 512)
    receive(stream, half)
    target = memoryview(bytearray(INITIAL_WINDOW))
    assert stream.attach(target) == INITIAL_WINDOW // 2 + INITIAL_WINDOW
    assert stream.detach(give_back=True) == len(half)
    window = stream.receive_window
    receive(stream, b"end")
    data, credit = stream.take(None)
    assert data == half + b"end"
    assert credit == 0
    assert stream.receive_window == window - 3


def test_no_credit_is_wasted_on_a_stream_that_has_ended(stream):
    receive(stream, bytes(INITIAL_WINDOW))
    stream.finished_receiving = True
    assert stream.take(None)[1] == 0


def test_data_after_the_end_is_refused(stream):
    stream.finished_receiving = True
    with pytest.raises(BadFrame, match="after its end"):
        stream.announce(1)


def test_a_window_of_more_than_32_bits_is_refused(stream):
    with pytest.raises(BadFrame, match="overflows"):
        stream.grow_send_window(MAX_U32)
