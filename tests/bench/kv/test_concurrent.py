"""What is made of several transfers' chunks."""

import pytest

from bench.kv.concurrent import share_of_first, sizes
from bench.kv.transfer import Fetched


def test_sizes_differ_and_add_up():
    assert sizes(1000, 4) == [400, 300, 200, 100]
    assert sizes(1, 3) == [1, 1, 1]


def test_a_transfer_that_got_nothing_while_another_was_served_has_no_share():
    served = Fetched(0.0, [(1.0, 100), (2.0, 100)], 200)
    starved = Fetched(0.0, [(3.0, 100), (4.0, 300)], 400)
    assert share_of_first([served, starved]) == [2.0, 0.0]


def test_equal_shares_are_one_each():
    short = Fetched(0.0, [(1.0, 50), (2.0, 50)], 100)
    long = Fetched(0.0, [(1.0, 50), (2.0, 50), (3.0, 50)], 150)
    assert share_of_first([short, long]) == [1.0, 1.0]


def test_goodput_counts_raw_bytes_from_the_request_on():
    fetched = Fetched(10.0, [(11.0, 300), (12.0, 100)], 250)
    assert fetched.raw_bytes == 400
    assert fetched.bytes_per_s == pytest.approx(200)
