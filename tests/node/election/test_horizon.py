from node.election.horizon import ROUNDS_AHEAD, TermHorizon
from node.election.terms import MAX_TERM, next_term, round_of


def term(round_):
    return next_term((round_ - 1) << 31, 7)


def test_what_elections_honestly_use_up_is_taken_in():
    horizon, own = TermHorizon(0.0), term(1)
    assert horizon.admits(term(2), own, 0.0)
    assert horizon.admits(own, term(5), 0.0), "a term of the past does no harm"
    assert horizon.admits(term(ROUNDS_AHEAD), own, 0.0), "the other half of a split"
    assert horizon.admits(term(ROUNDS_AHEAD), own, 0.0), "said again before it is on the disk"


def test_last_term_of_all_is_not():
    horizon = TermHorizon(0.0)
    assert not horizon.admits(MAX_TERM, term(1), 0.0)
    assert horizon.admits(term(2), term(1), 0.0), "and elections go on"


def test_small_steps_lead_no_further_than_large_ones():
    horizon, own = TermHorizon(0.0), term(1)
    for number in range(100_000):
        claimed = term(round_of(own) + 50)
        if horizon.admits(claimed, own, number / 1000):
            own = claimed
    assert round_of(own) <= ROUNDS_AHEAD + 100 + 50


def test_node_that_knows_of_no_term_takes_any():
    assert TermHorizon(0.0).admits(term(50_000), 0, 0.0)
