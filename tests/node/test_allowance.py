from node.allowance import Allowance


def test_so_much_at_once_and_so_much_a_second():
    allowance = Allowance(per_s=2.0, burst=4.0, now=0.0)
    assert [allowance.take(1, 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert not allowance.take(1, 0.4)
    assert allowance.take(1, 0.5)
    assert [allowance.take(1, 1000.0) for _ in range(5)] == [True] * 4 + [False]


def test_overdrawing_tells_how_long_to_wait():
    allowance = Allowance(per_s=2.0, burst=4.0, now=0.0)
    assert allowance.overdraw(4, 0.0) == 0.0
    assert allowance.overdraw(1, 0.0) == 0.5
    assert allowance.overdraw(1, 0.5) == 0.5
    assert allowance.overdraw(2, 10.0) == 0.0
