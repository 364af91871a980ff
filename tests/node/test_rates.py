from node.rates import Rates
from protocols.link import Measured

LINK = ("peer", "eth0", "eth1")


def test_the_newest_of_both_ends_counts_whoever_measured_it():
    rates = Rates()
    assert rates.bytes_per_s(LINK) is None
    assert rates.own(LINK, 5.0) is None
    rates.note(LINK, 100.0, 10.0)
    rates.told(LINK, Measured(50.0, age_s=8.0), 12.0)
    assert rates.bytes_per_s(LINK) == 100.0
    rates.told(LINK, Measured(70.0, age_s=0.5), 12.0)
    assert rates.bytes_per_s(LINK) == 70.0
    assert rates.age_s(LINK, 13.0) == 1.5


def test_only_what_was_measured_here_is_told_on():
    rates = Rates()
    rates.told(LINK, Measured(50.0, age_s=0.0), 12.0)
    assert rates.own(LINK, 12.0) is None
    rates.note(LINK, 100.0, 10.0)
    assert rates.own(LINK, 12.0) == Measured(100.0, age_s=2.0)


def test_memory_is_bounded_and_what_is_measured_is_kept():
    rates = Rates()
    for index in range(5000):
        rates.note((f"peer{index}", "eth0", "eth0"), 1.0, float(index))
        rates.note(LINK, 2.0, float(index))
    assert len(rates) < 1000
    assert rates.bytes_per_s(LINK) == 2.0
    assert rates.bytes_per_s(("peer0", "eth0", "eth0")) is None
