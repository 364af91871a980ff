"""Points, their decay, and bans."""

import pytest

from node.offences import LIMIT, OffenceLedger


def offend(ledger, peer, times, now, points=2.0):
    return [ledger.add(peer, points, "nonsense", now) for _ in range(times)]


def test_ban_comes_with_the_offence_that_is_one_too_many():
    ledger = OffenceLedger()
    *before, last = offend(ledger, "a", 5, now=0.0)
    assert before == [None] * 4
    assert last is not None
    assert (last.seconds, last.reason) == (60.0, "nonsense")
    assert ledger.banned_for("a", 1.0) == 59.0
    assert ledger.banned_for("a", 60.0) == 0.0
    assert ledger.banned_for("b", 1.0) == 0.0


def test_peers_have_accounts_of_their_own():
    ledger = OffenceLedger()
    for _ in range(4):
        assert ledger.add("a", 2.0, "x", 0.0) is None
        assert ledger.add("b", 2.0, "x", 0.0) is None


def test_an_error_now_and_then_costs_nothing_for_ever():
    ledger = OffenceLedger()
    assert not any(ledger.add("a", 2.0, "x", 30.0 * n) for n in range(10_000))
    assert any(ledger.add("b", 2.0, "x", 5.0 * n) for n in range(10)), "every 5 s is too often"


def test_bans_double_up_to_a_limit_and_are_forgiven_in_the_end():
    ledger, now, lengths = OffenceLedger(), 0.0, []
    for _ in range(7):
        ban = offend(ledger, "a", 5, now)[-1]
        assert ban is not None
        lengths.append(ban.seconds)
        now += ban.seconds
    assert lengths == [60, 120, 240, 480, 960, 960, 960]
    ban = offend(ledger, "a", 5, now + 7200)[-1]
    assert ban is not None
    assert ban.seconds == 60


def test_what_a_banned_peer_still_has_under_way_is_not_counted():
    ledger = OffenceLedger()
    offend(ledger, "a", 5, 0.0)
    assert not any(offend(ledger, "a", 100, 1.0))
    assert ledger.banned_for("a", 1.0) == 59.0


@pytest.mark.parametrize("points", [LIMIT, 2.0])
def test_new_identities_cost_no_memory_and_free_nobody(points):
    ledger = OffenceLedger(capacity=10)
    offend(ledger, "bad", 5, 0.0)
    for number in range(1000):
        ledger.add(f"new-{number}", min(points, LIMIT - 1), "x", 1.0)
    assert len(ledger) == 10
    assert ledger.banned_for("bad", 1.0) == 59.0
