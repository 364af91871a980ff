"""Transfers that share a link, on a simulated one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from node.prefill.sharing import MAX_GRANTED, STALL_S, FairQueue, Member

PIECE = 1 << 20
RATE = 100e6
NEVER = 1e9


@dataclass
class Transfer:
    size: int
    starts: float = 0.0
    deadline: float = NEVER
    pace: float = 0.0
    """Seconds after each piece in which its receiver has no room for another."""
    stops: bool = False
    """Whether its receiver takes no more than the first piece's beginning."""
    done: float | None = None
    member: Member = field(init=False)

    def __post_init__(self) -> None:
        self.member = Member(self.deadline, self.size)

    @property
    def sent(self) -> int:
        return self.size - self.member.left


def simulate(*transfers: Transfer, until: float = 1e6) -> float:
    """Have a link send what the queue grants, in the order of granting; return when it is done."""
    queue, now, link_free = FairQueue(), 0.0, 0.0
    ends: list[tuple[float, Transfer]] = []
    pausing: list[tuple[float, Transfer]] = []
    coming = sorted(transfers, key=lambda each: each.starts)
    by_member = {each.member: each for each in transfers}
    while (coming or len(queue)) and now < until:
        while coming and coming[0].starts <= now:
            joining = coming.pop(0)
            queue.join(joining.member)
            queue.ask(joining.member, min(PIECE, joining.size))
        for member in queue.grant(now):
            transfer = by_member[member]
            if not transfer.stops:
                link_free = max(link_free, now) + member.granted / RATE
                ends.append((link_free, transfer))
        # The next moment at which anything can change: a stalled piece makes room, too.
        moments = [each[0] for each in (*ends, *pausing)] + [each.starts for each in coming[:1]]
        now = min([*moments, now + STALL_S])
        for end, transfer in [each for each in ends if each[0] <= now]:
            ends.remove((end, transfer))
            queue.sent(transfer.member, now)
            if transfer.member.left:
                pausing.append((now + transfer.pace, transfer))
            else:
                transfer.done = now
                queue.leave(transfer.member)
        for end, transfer in [each for each in pausing if each[0] <= now]:
            pausing.remove((end, transfer))
            queue.ask(transfer.member, min(PIECE, transfer.member.left))
    return now


def test_equal_shares_whatever_their_sizes():
    small, middle, large = Transfer(40 << 20), Transfer(80 << 20), Transfer(400 << 20)
    simulate(small, middle, large, until=0.6)
    sent = [each.sent for each in (small, middle, large)]
    assert max(sent) - min(sent) <= 3 * PIECE
    total = simulate(*(Transfer(each << 20) for each in (40, 80, 400)))
    assert total == pytest.approx((520 << 20) / RATE, rel=0.01)


def test_one_that_comes_later_is_not_held_up_and_is_owed_nothing():
    large, later = Transfer(1000 << 20), Transfer(10 << 20, starts=5.0)
    simulate(large, later)
    assert later.done is not None
    alone = (10 << 20) / RATE
    assert later.done - 5.0 <= 2 * alone + (MAX_GRANTED + PIECE) / RATE
    twin, other = Transfer(100 << 20, starts=5.0), Transfer(1000 << 20)
    simulate(twin, other, until=6.0)
    assert other.sent >= 5.0 * RATE + 0.45 * RATE


def test_one_that_is_urgent_makes_its_deadline_and_the_others_go_on():
    others = [Transfer(1000 << 20) for _ in range(3)]
    urgent = Transfer(100 << 20, starts=3.0, deadline=3.0 + 1.8 * (100 << 20) / RATE)
    simulate(*others, urgent, until=3.0)
    before = sum(each.sent for each in others)
    fresh = [Transfer(1000 << 20) for _ in range(3)]
    again = Transfer(urgent.size, starts=3.0, deadline=urgent.deadline)
    simulate(*fresh, again, until=urgent.deadline)
    assert again.done is not None
    assert again.done <= again.deadline
    # It takes what it needs, and not more than its part.
    assert sum(each.sent for each in fresh) > before + 0.2 * RATE * (urgent.deadline - 3.0)


def test_of_two_that_are_urgent_the_earlier_deadline_goes_first():
    alone = (100 << 20) / RATE
    other = Transfer(1000 << 20)
    late = Transfer(100 << 20, starts=2.0, deadline=2.0 + 2.9 * alone)
    early = Transfer(100 << 20, starts=2.0, deadline=2.0 + 1.6 * alone)
    simulate(other, late, early)
    assert early.done is not None
    assert late.done is not None
    assert early.done <= early.deadline
    assert late.done <= late.deadline


def test_a_hopeless_deadline_is_no_privilege():
    other = Transfer(400 << 20)
    hopeless = Transfer(400 << 20, starts=2.0, deadline=2.5)
    simulate(other, hopeless, until=4.0)
    gained = other.sent - 2.0 * RATE
    assert gained == pytest.approx(hopeless.sent, rel=0.1)


def test_slow_receivers_hold_nobody_up():
    slow = [Transfer(1000 << 20, pace=0.2) for _ in range(2)]
    quick = Transfer(1000 << 20)
    simulate(*slow, quick, until=5.0)
    assert quick.sent >= 0.85 * 5.0 * RATE
    for each in slow:
        assert each.sent >= 0.8 * 5.0 * PIECE / 0.2


def test_receivers_that_stop_hold_nobody_up_for_long():
    stopped = [Transfer(1000 << 20, stops=True) for _ in range(3)]
    quick = Transfer(1000 << 20)
    simulate(*stopped, quick, until=5.0)
    assert quick.sent >= (5.0 - 3 * STALL_S) * RATE


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_and_nobody_starves(seed: int):
    rng = random.Random(seed)
    transfers = [
        Transfer(
            size=rng.randrange(1, 200 << 20),
            starts=rng.uniform(0, 5),
            deadline=rng.choice([NEVER, rng.uniform(1, 20)]),
            pace=rng.choice([0.0, 0.0, 0.0, 0.05, 0.3]),
        )
        for _ in range(rng.randrange(2, 9))
    ]
    simulate(*transfers)
    for each in transfers:
        assert each.member.left == 0
        assert each.done is not None
        share = RATE * 0.25 / len(transfers)
        assert (
            each.done - each.starts
            <= each.size / share + 2 * each.pace * (each.size / PIECE + 1) + 1.0
        )


def test_a_turn_is_asked_for_once():
    queue, member = FairQueue(), Member(NEVER, 100)
    queue.join(member)
    queue.ask(member, 10)
    with pytest.raises(ValueError, match="asked for beside 10"):
        queue.ask(member, 10)
    assert queue.grant(0.0) == [member]
    with pytest.raises(ValueError, match="asked for beside 10"):
        queue.ask(member, 10)
    queue.sent(member, 1.0)
    with pytest.raises(ValueError, match="0 bytes"):
        queue.ask(member, 0)
