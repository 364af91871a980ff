"""Whatever a few nodes do, in whatever order: never two masters in one term, and no term falls."""

import pytest

from tests.support.exploration import Violation, explore


@pytest.mark.parametrize(("size", "depth"), [(2, 7), (3, 4)])
def test_no_two_masters_in_one_term(size, depth):
    assert explore(size, depth) > 1000


@pytest.mark.soak
@pytest.mark.parametrize(("size", "depth"), [(2, 10), (3, 6), (4, 4)])
def test_no_two_masters_in_one_term_further_on(size, depth):
    assert explore(size, depth) > 10_000


@pytest.mark.parametrize("size", [2, 3])
def test_terms_that_only_count_have_two_masters(size, monkeypatch):
    # That is how terms were before they had a ballot, and it shows that the check can fail.
    monkeypatch.setattr("node.election.machine.ballot", lambda *_: 0)
    with pytest.raises(Violation, match="are master of"):
        explore(size, 2)


def test_term_that_is_not_persisted_before_the_claim_is_noticed(monkeypatch):
    monkeypatch.setattr("node.election.machine.ElectionMachine._adopt", lambda *_: [])
    with pytest.raises(Violation, match="before it is persisted"):
        explore(2, 2)
