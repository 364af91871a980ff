from engines.mlx.scheduler import Pacer


def test_it_starts_at_the_measured_rate():
    assert Pacer(400.0).size == 100
    assert Pacer(1.0).size == 8
    assert Pacer(1e9).size == 2048


def test_it_grows_on_a_fast_machine_by_doubling_at_most():
    pacer = Pacer(40.0)
    sizes = []
    for _ in range(10):
        pacer.measured(pacer.size, 0.001)
        sizes.append(pacer.size)
    assert sizes == [20, 40, 80, 160, 320, 640, 1280, 2048, 2048, 2048]


def test_it_settles_where_a_piece_takes_a_quarter_of_a_second():
    pacer = Pacer(2000.0)
    for _ in range(10):
        pacer.measured(pacer.size, pacer.size / 200)
    assert pacer.size == 50


def test_a_piece_cut_short_says_nothing_of_larger_ones():
    pacer = Pacer(400.0)
    pacer.measured(3, 0.001)
    assert pacer.size == 100
    pacer.measured(3, 1.0)
    assert pacer.size == 50


def test_an_immeasurably_short_time_is_no_error():
    pacer = Pacer(400.0)
    pacer.measured(100, 0.0)
    assert pacer.size == 200
