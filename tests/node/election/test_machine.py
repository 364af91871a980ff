from node.election.machine import (
    HEARTBEAT_S,
    PATIENCE_S,
    STAGGER_S,
    ElectionMachine,
    MasterChanged,
    PersistTerm,
    Send,
)
from protocols.gossip import Heartbeat


def run(machine, start, end, rank=0):
    """Tick four times a second; return the (time, effect) pairs."""
    effects, now = [], start
    while now <= end:
        effects += [(now, effect) for effect in machine.tick(rank, now)]
        now += 0.25
    return effects


def test_lone_node_becomes_master_and_persists_the_term_before_it_claims():
    machine = ElectionMachine("a", 4, 0.0)
    effects = [effect for _, effect in run(machine, 0.0, PATIENCE_S)]
    assert effects == [
        PersistTerm(5),
        MasterChanged("a", 5),
        Send(Heartbeat("a", 5, int(PATIENCE_S * 1000))),
    ]
    assert machine.is_master


def test_master_says_so_every_second_with_the_seniority_of_its_claim():
    machine = ElectionMachine("a", 0, 0.0)
    run(machine, 0.0, PATIENCE_S)
    sent = [effect for _, effect in run(machine, PATIENCE_S + 0.25, PATIENCE_S + 10.0)]
    assert len(sent) == 10
    assert set(sent) == {Send(Heartbeat("a", 1, int(PATIENCE_S * 1000)))}


def test_lower_ranks_wait_longer():
    first = next(time for time, _ in run(ElectionMachine("a", 0, 0.0), 0.0, 20.0, rank=0))
    third = next(time for time, _ in run(ElectionMachine("a", 0, 0.0), 0.0, 20.0, rank=2))
    assert third - first >= 2 * STAGGER_S - 0.25


def test_node_follows_a_master_that_it_hears_and_does_not_campaign():
    machine = ElectionMachine("b", 0, 0.0)
    assert machine.heard(Heartbeat("a", 3, 9), 1.0) == [PersistTerm(3), MasterChanged("a", 3)]
    for second in range(2, 30):
        assert machine.heard(Heartbeat("a", 3, 9), float(second)) == []
        assert machine.tick(0, second + 0.5) == []
    assert machine.master == "a"


def test_silence_makes_the_next_term():
    machine = ElectionMachine("b", 0, 0.0)
    machine.heard(Heartbeat("a", 3, 9), 0.0)
    effects = [effect for _, effect in run(machine, 0.0, PATIENCE_S)]
    assert effects[:2] == [PersistTerm(4), MasterChanged("b", 4)]


def test_lower_term_steps_down():
    machine = ElectionMachine("a", 0, 0.0)
    run(machine, 0.0, PATIENCE_S)
    effects = machine.heard(Heartbeat("b", 7, 0), PATIENCE_S)
    assert effects == [PersistTerm(7), MasterChanged("b", 7)]
    assert not machine.is_master


def test_in_one_term_the_senior_claim_wins_on_both_sides():
    senior, junior = ElectionMachine("a", 0, -100.0), ElectionMachine("b", 0, 0.0)
    run(senior, 0.0, PATIENCE_S)
    run(junior, 0.0, PATIENCE_S)
    assert senior.is_master
    assert junior.is_master
    claims = {"a": Heartbeat("a", 1, 103_000), "b": Heartbeat("b", 1, 3000)}
    assert senior.heard(claims["b"], 4.0) == []
    assert junior.heard(claims["a"], 4.0) == [MasterChanged("a", 1)]
    assert (senior.master, junior.master) == ("a", "a")


def test_claim_of_an_old_term_is_ignored():
    machine = ElectionMachine("b", 9, 0.0)
    assert machine.heard(Heartbeat("a", 8, 10**9), 0.0) == []
    assert machine.master is None


def test_master_that_hears_of_a_higher_term_claims_one_beyond_it():
    machine = ElectionMachine("a", 0, 0.0)
    run(machine, 0.0, PATIENCE_S)
    effects = machine.heard_term(9, PATIENCE_S)
    assert effects[0] == PersistTerm(10)
    assert isinstance(effects[-1], Send)
    assert effects[-1].heartbeat.term == 10
    assert machine.is_master


def test_follower_adopts_a_higher_term_and_keeps_its_master_meanwhile():
    machine = ElectionMachine("b", 0, 0.0)
    machine.heard(Heartbeat("a", 3, 9), 0.0)
    assert machine.heard_term(8, 0.5) == [PersistTerm(8)]
    assert machine.heard_term(8, 0.6) == []
    assert machine.master == "a"
    assert machine.term == 8


def test_loss_of_the_master_needs_no_patience():
    machine = ElectionMachine("b", 0, 0.0)
    machine.heard(Heartbeat("a", 3, 9), 0.0)
    effects = machine.gone("a", 0, 0.5)
    assert effects[:3] == [MasterChanged(None, 3), PersistTerm(4), MasterChanged("b", 4)]


def test_loss_of_another_node_is_no_election():
    machine = ElectionMachine("b", 0, 0.0)
    machine.heard(Heartbeat("a", 3, 9), 0.0)
    assert machine.gone("c", 0, 0.5) == []


def test_node_that_was_held_up_does_not_blame_the_master():
    machine = ElectionMachine("b", 0, 0.0)
    machine.heard(Heartbeat("a", 3, 9), 0.0)
    assert machine.tick(0, 0.25) == []
    # Nothing ran for ten seconds, so no heartbeat could have been heard.
    assert machine.tick(0, 10.25) == []
    effects = run(machine, 10.5, 10.25 + PATIENCE_S)
    assert effects
    assert effects[0][0] >= 10.25 + PATIENCE_S - HEARTBEAT_S - 0.25
