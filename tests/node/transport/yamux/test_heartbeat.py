import pytest

from node.transport.yamux.heartbeat import Beat, Heartbeat


@pytest.fixture
def heartbeat():
    return Heartbeat(interval_s=4, timeout_s=8)


def beats(heartbeat, ticks):
    return [heartbeat.tick() for _ in range(ticks)]


def test_it_pings_once_per_interval_and_gives_up_after_the_time_out(heartbeat):
    assert heartbeat.tick_s == 1
    quiet = [Beat.NOTHING] * 3
    assert beats(heartbeat, 8) == [*quiet, Beat.PING, *quiet, Beat.GIVE_UP]


def test_whatever_is_heard_keeps_it_up(heartbeat):
    for _ in range(10):
        assert Beat.GIVE_UP not in beats(heartbeat, 7)
        heartbeat.heard()


def test_round_trips_are_smoothed_and_late_pongs_ignored(heartbeat):
    first = heartbeat.ping(100.0)
    heartbeat.pong(first, 100.2)
    assert heartbeat.round_trip_s == pytest.approx(0.2)
    second = heartbeat.ping(104.0)
    heartbeat.pong(first, 104.1)
    assert heartbeat.round_trip_s == pytest.approx(0.2)
    heartbeat.pong(second, 104.4)
    assert heartbeat.round_trip_s == pytest.approx(0.3)
