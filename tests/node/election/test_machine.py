import pytest

from node.election.machine import (
    GREETING_S,
    HEARTBEAT_S,
    LOST_S,
    PATIENCE_S,
    STAGGER_S,
    ElectionMachine,
    MasterChanged,
    PersistTerm,
    Place,
    Send,
)
from node.election.terms import MAX_TERM, ballot, next_term, round_of
from protocols.gossip import Heartbeat

ALONE = Place()
TICK_S = 0.25


def term(round, peer_id, incarnation=1):
    """The term that a node claims in a round."""
    return next_term((round - 1) << 31, ballot(peer_id, incarnation))


def new(peer_id, persisted=0, now=0.0):
    return ElectionMachine(peer_id, 1, persisted, now)


def run(machine, start, end, rank=0):
    """Tick four times a second; return the (time, effect) pairs."""
    effects, now = [], start
    while now <= end:
        effects += [(now, effect) for effect in machine.tick(Place(rank, rank + 1), now)]
        now += TICK_S
    return effects


def master(peer_id, persisted=0):
    machine = new(peer_id, persisted)
    run(machine, 0.0, PATIENCE_S)
    assert machine.is_master
    return machine


def follower(peer_id, of, its_term):
    machine = new(peer_id)
    machine.heard(Heartbeat(of, its_term), ALONE, 0.0)
    assert machine.master == of
    return machine


def claims(effects):
    return [each.heartbeat.term for each in effects if isinstance(each, Send)]


def test_lone_node_becomes_master_and_persists_the_term_before_it_claims():
    machine = new("a", term(4, "b"))
    effects = [effect for _, effect in run(machine, 0.0, PATIENCE_S)]
    own = term(5, "a")
    assert effects == [PersistTerm(own), MasterChanged("a", own), Send(Heartbeat("a", own, 1))]
    assert (machine.master, machine.master_term) == ("a", own)


def test_term_persisted_by_an_earlier_version_is_of_round_0():
    assert round_of(7) == 0
    (persisted, *_) = [effect for _, effect in run(new("a", 7), 0.0, PATIENCE_S)]
    assert persisted == PersistTerm(term(1, "a"))


def test_terms_differ_by_node_and_by_start_and_grow_by_round():
    names = [f"12D3KooW{index}" for index in range(100)]
    first = {next_term(0, ballot(name, start)) for name in names for start in range(10)}
    second = {next_term(each, ballot(name, 1)) for each in first for name in names[:5]}
    assert len(first) == 1000
    assert min(second) > max(first)
    assert max(second) <= MAX_TERM
    assert {round_of(each) for each in second} == {2}


def test_master_says_so_every_second_and_how_many_follow_it():
    machine = master("a")
    sent = [effect for _, effect in run(machine, PATIENCE_S + TICK_S, PATIENCE_S + 10.0, rank=2)]
    assert len(sent) == 10
    assert set(sent) == {Send(Heartbeat("a", term(1, "a"), 3))}


def test_lower_ranks_wait_longer():
    first = next(time for time, _ in run(new("a"), 0.0, 20.0, rank=0))
    third = next(time for time, _ in run(new("a"), 0.0, 20.0, rank=2))
    assert third - first >= 2 * STAGGER_S - TICK_S


def test_node_that_meets_another_which_knows_no_master_claims_soon():
    machine = new("a")
    machine.joined("b", 1, 1.0)
    assert machine.heard_term(0, "", 1.0) == []
    (claimed_at, _), *_ = run(machine, 0.0, 20.0)
    assert claimed_at == 1.0 + GREETING_S


def test_node_that_meets_another_which_follows_a_master_waits_to_hear_it():
    machine = new("a")
    machine.joined("b", 1, 1.0)
    assert machine.heard_term(term(3, "c"), "c", 1.0) == [PersistTerm(term(3, "c"))]
    (claimed_at, _), *_ = run(machine, 0.0, 20.0)
    assert claimed_at == 1.0 + PATIENCE_S


def test_node_that_is_not_connected_yet_claims_late():
    (claimed_at, _), *_ = run(new("a"), 0.0, 20.0)
    assert claimed_at == PATIENCE_S


def test_node_follows_a_master_that_it_hears_and_does_not_campaign():
    machine, claim = new("b"), Heartbeat("a", term(3, "a"))
    assert machine.heard(claim, ALONE, 1.0) == [
        PersistTerm(claim.term),
        MasterChanged("a", claim.term),
    ]
    for second in range(2, 30):
        assert machine.heard(Heartbeat("a", claim.term, second), ALONE, float(second)) == []
        assert machine.tick(ALONE, second + 0.5) == []
    assert machine.master == "a"


def test_silence_makes_the_next_term():
    machine = follower("b", "a", term(3, "a"))
    effects = [effect for _, effect in run(machine, 0.0, PATIENCE_S)]
    assert effects[:2] == [PersistTerm(term(4, "b")), MasterChanged("b", term(4, "b"))]


def test_lower_term_steps_down():
    machine = master("a")
    effects = machine.heard(Heartbeat("b", term(7, "b")), ALONE, PATIENCE_S)
    assert effects == [PersistTerm(term(7, "b")), MasterChanged("b", term(7, "b"))]
    assert not machine.is_master


def test_master_of_the_many_is_not_deposed_by_the_few():
    many, few = master("a"), master("b", persisted=term(6, "b"))
    effects = many.heard(Heartbeat("b", term(7, "b"), followers=1), Place(0, 3), PATIENCE_S)
    assert effects[-1] == Send(Heartbeat("a", term(8, "a"), 3))
    (answer,) = (each.heartbeat for each in effects if isinstance(each, Send))
    few.heard(answer, Place(1, 2), PATIENCE_S)
    assert (many.master, few.master) == ("a", "a")
    assert many.term == few.term == many.master_term == term(8, "a")


def test_masters_with_as_many_followers_go_by_the_term_alone():
    machine = master("a")
    assert machine.heard(Heartbeat("b", term(2, "b"), 3), Place(0, 3), PATIENCE_S)
    assert machine.master == "b"


@pytest.mark.parametrize("old", [term(8, "a"), 1, 0, -1])
def test_claim_below_a_term_that_is_known_is_ignored(old):
    machine = new("b", term(9, "c"))
    assert machine.heard(Heartbeat("a", old), ALONE, 0.0) == []
    assert machine.master is None


@pytest.mark.parametrize("excessive", [MAX_TERM + 1, 1 << 70])
def test_term_beyond_all_rounds_is_ignored(excessive):
    machine = new("b")
    assert machine.heard(Heartbeat("a", excessive), ALONE, 0.0) == []
    assert machine.heard_term(excessive, "a", 0.0) == []
    assert machine.term == 0


def test_no_round_is_claimed_after_the_last():
    machine = new("b", MAX_TERM)
    assert run(machine, 0.0, 30.0) == []


def test_restarted_node_follows_the_claim_of_the_term_that_it_had_persisted():
    machine = new("b", term(3, "a"))
    machine.heard(Heartbeat("a", term(3, "a")), ALONE, 0.0)
    assert machine.master == "a"


def test_master_that_hears_of_a_higher_term_claims_one_beyond_it():
    machine = master("a")
    assert machine.heard_term(term(9, "b"), "", PATIENCE_S) == [PersistTerm(term(9, "b"))]
    effects = run(machine, PATIENCE_S, PATIENCE_S + 2 * HEARTBEAT_S)
    assert PersistTerm(term(10, "a")) in [effect for _, effect in effects]
    assert machine.is_master
    assert machine.master_term == term(10, "a")


def test_master_leaves_a_higher_term_to_its_claimant_if_that_is_there():
    machine = master("a")
    machine.heard_term(term(9, "b"), "b", PATIENCE_S)
    machine.heard(Heartbeat("b", term(9, "b")), ALONE, PATIENCE_S + 1.0)
    assert claims(effect for _, effect in run(machine, PATIENCE_S, PATIENCE_S + 3.5)) == []
    assert machine.master == "b"


def test_follower_notes_a_higher_term_and_keeps_its_master_meanwhile():
    machine = follower("b", "a", term(3, "a"))
    assert machine.heard_term(term(8, "c"), "", 0.5) == [PersistTerm(term(8, "c"))]
    assert machine.heard_term(term(8, "c"), "", 0.6) == []
    for second in range(1, 10):
        assert machine.heard(Heartbeat("a", term(3, "a")), ALONE, float(second)) == []
        assert machine.tick(ALONE, float(second)) == []
    assert (machine.master, machine.master_term) == ("a", term(3, "a"))
    assert machine.term == term(8, "c")


def test_goodbye_of_the_master_needs_no_patience():
    machine = follower("b", "a", term(3, "a"))
    effects = machine.gone("a", ALONE, 0.5)
    assert effects[:3] == [
        MasterChanged(None, term(3, "a")),
        PersistTerm(term(4, "b")),
        MasterChanged("b", term(4, "b")),
    ]


def test_end_of_the_connection_to_the_master_shortens_the_wait():
    machine = follower("b", "a", term(3, "a"))
    machine.lost("a", 0.5)
    (claimed_at, _), *_ = run(machine, 0.5, 10.0)
    assert claimed_at == 0.5 + LOST_S


def test_link_that_comes_and_goes_is_no_election():
    machine = follower("b", "a", term(3, "a"))
    for second in range(1, 60):
        machine.lost("a", second - 0.75)
        assert machine.tick(ALONE, second - 0.25) == []
        assert machine.heard(Heartbeat("a", term(3, "a")), ALONE, float(second)) == []
    assert machine.term == term(3, "a")


def test_loss_of_another_node_is_no_election():
    machine = follower("b", "a", term(3, "a"))
    machine.lost("c", 0.5)
    assert machine.gone("c", ALONE, 0.5) == []
    assert run(machine, 0.5, PATIENCE_S - TICK_S) == []


def test_node_that_was_held_up_does_not_blame_the_master():
    machine = follower("b", "a", term(3, "a"))
    assert machine.tick(ALONE, 0.25) == []
    # Nothing ran for ten seconds, so no heartbeat could have been heard.
    assert machine.tick(ALONE, 10.25) == []
    effects = run(machine, 10.5, 10.25 + PATIENCE_S)
    assert effects
    assert effects[0][0] >= 10.25 + PATIENCE_S - HEARTBEAT_S - 0.25


def test_master_that_was_held_up_steps_down_and_listens_first():
    machine = master("a")
    assert machine.tick(ALONE, 23.0) == [MasterChanged(None, term(1, "a"))]
    assert not machine.is_master
    machine.heard(Heartbeat("b", term(2, "b")), Place(0, 5), 23.5)
    assert machine.master == "b"


def test_master_that_was_held_up_with_nobody_to_take_over_claims_a_new_term():
    machine = master("a")
    machine.tick(ALONE, 23.0)
    (claimed_at, _), *_ = run(machine, 23.25, 30.0)
    assert claimed_at == 23.0 + PATIENCE_S
    assert machine.master_term == term(2, "a")


@pytest.fixture
def same_ballots(monkeypatch):
    """Give all nodes one ballot, unless they take another."""
    monkeypatch.setattr("node.election.machine.ballot", lambda _, __, salt=0: 5 + salt)


@pytest.mark.usefixtures("same_ballots")
def test_of_two_with_one_ballot_the_higher_peer_id_takes_another_when_they_meet():
    a, b = new("a"), new("b")
    a.joined("b", 1, 0.0)
    b.joined("a", 1, 0.0)
    run(a, 0.0, PATIENCE_S)
    run(b, 0.0, PATIENCE_S)
    assert (a.master_term, b.master_term) == (next_term(0, 5), next_term(0, 6))


@pytest.mark.usefixtures("same_ballots")
def test_of_two_that_claimed_one_term_before_they_met_the_lower_peer_id_keeps_it():
    a, b = master("a"), master("b")
    assert a.term == b.term
    to_a, to_b = Heartbeat("b", b.term), Heartbeat("a", a.term)
    assert a.heard(to_a, ALONE, 4.0) == []
    assert b.heard(to_b, ALONE, 4.0) == [MasterChanged("a", a.term)]


def test_followers_of_the_many_wait_for_their_master_to_answer_the_few():
    machine = new("b")
    machine.heard(Heartbeat("a", term(3, "a"), followers=4), ALONE, 0.0)
    rival = Heartbeat("c", term(7, "c"), followers=2)
    assert machine.heard(rival, ALONE, 1.0) == [PersistTerm(rival.term)]
    assert machine.master == "a"
    assert machine.heard(Heartbeat("a", term(8, "a"), followers=4), ALONE, 2.0)[1:] == [
        MasterChanged("a", term(8, "a"))
    ]


def test_followers_wait_for_no_master_that_is_silent_or_has_lost_its_connection():
    rival = Heartbeat("c", term(7, "c"), followers=1)
    for lost_at, heard_at in ((None, 2.0), (0.9, 1.0)):
        machine = new("b")
        machine.heard(Heartbeat("a", term(3, "a"), followers=4), ALONE, 0.0)
        if lost_at is not None:
            machine.lost("a", lost_at)
        machine.heard(rival, ALONE, heard_at)
        assert machine.master == "c"
