"""Which link is used: tables, and that it never flaps."""

import itertools
import random

import pytest

from node.interface_class import RANK
from node.preference import Standing, choose_link, clearly_better

TB, ETH, WIFI = Standing("thunderbolt"), Standing("ethernet"), Standing("wifi")


def test_the_order_of_classes_is_the_one_for_bulk():
    order = ["loopback", "thunderbolt", "ethernet", "wifi", "other", "virtual"]
    assert sorted(RANK, key=RANK.__getitem__) == order


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (TB, Standing("ethernet", 100_000, 5e9)),
        (ETH, Standing("wifi", rtt_s=0.0001)),
        (WIFI, Standing("other")),
        (Standing("other"), Standing("virtual", 100_000)),
        (Standing("ethernet", bytes_per_s=200e6), Standing("ethernet", bytes_per_s=100e6)),
        (Standing("ethernet", 10_000), Standing("ethernet", 1_000)),
        (Standing("ethernet", 10_000), Standing("ethernet", 1_000, bytes_per_s=110e6)),
        (Standing("ethernet", 1_000, bytes_per_s=110e6), Standing("ethernet", 1_000)),
        (Standing("wifi", rtt_s=0.004), Standing("wifi", rtt_s=0.02)),
    ],
)
def test_class_then_rate_then_latency(better: Standing, worse: Standing):
    assert clearly_better(better, worse)
    assert not clearly_better(worse, better)
    assert choose_link([worse, better], None) == 1
    assert choose_link([worse, better], 0) == 1
    assert choose_link([better, worse], 0) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Standing("ethernet", bytes_per_s=110e6), Standing("ethernet", bytes_per_s=100e6)),
        (Standing("ethernet", rtt_s=0.0004), Standing("ethernet", rtt_s=0.0003)),
        (Standing("ethernet", rtt_s=0.0004), Standing("ethernet")),
    ],
)
def test_little_or_unknown_differences_change_nothing(one: Standing, other: Standing):
    for current in (0, 1):
        assert choose_link([one, other], current) == current


def test_no_link_is_left_for_one_and_taken_up_again_while_nothing_changes():
    seeded = random.Random(7)
    values = [None, 1e6, 90e6, 100e6, 120e6, 140e6, 1e9]
    for _ in range(2000):
        standings = [
            Standing(
                seeded.choice(["ethernet", "wifi"]),
                seeded.choice([0, 1000, 10_000]),
                seeded.choice(values),
                seeded.choice([None, 0.0003, 0.0005, 0.002, 0.05]),
            )
            for _ in range(seeded.randint(1, 4))
        ]
        current = None
        visited = []
        for _ in range(6):
            current = choose_link(standings, current)
            visited.append(current)
        assert len(list(itertools.groupby(visited))) == 1, standings
