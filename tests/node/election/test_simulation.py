"""Clusters in a simulation that loses, repeats, delays, splits, freezes and kills.

Each raises `Violation` by itself if a term has two masters, falls, or is claimed before it is on
the disk.
"""

import random

import pytest

from bench.simulation.cluster import SimulatedCluster, Violation
from tests.support.storms import BOUND_S, Storm

CALM_S = 60.0


def settled(seed, size=5):
    """A cluster with a master."""
    cluster = SimulatedCluster(size, random.Random(seed), skewed=True)
    for index in range(size):
        cluster.start(index)
    assert cluster.run_until_agreed(BOUND_S) is not None
    return cluster


def master_of(cluster):
    host = cluster.master()
    assert host is not None
    return host


def node_of(host):
    assert host.node is not None
    return host.node


def split(cluster, side):
    """Let nothing pass between the hosts on one side and the others."""
    everyone = range(len(cluster.hosts))
    cluster.blocked.update((a, b) for a in everyone for b in everyone if (a in side) != (b in side))


def stays(cluster, seconds):
    """Whether there is no other claim for so long."""
    claims = dict(cluster.masters)
    cluster.clock.run_until(cluster.clock.now + seconds)
    return cluster.masters == claims and cluster.agreed()


def one_master_after(seed):
    storm = Storm(seed)
    storm.rage()
    storm.calm_down()
    assert storm.cluster.run_until_agreed(BOUND_S) is not None
    assert stays(storm.cluster, CALM_S)


@pytest.mark.parametrize("seed", range(60))
def test_one_master_after_whatever_happened(seed):
    one_master_after(seed)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(50))
def test_one_master_after_whatever_happened_thousands_of_times(block):
    for seed in range(1000 + block * 100, 1100 + block * 100):
        one_master_after(seed)


def test_terms_that_only_count_have_two_masters(monkeypatch):
    # That is how terms were before they had a ballot, and it shows that the check can fail.
    monkeypatch.setattr("node.election.machine.ballot", lambda *_: 0)

    def rage():
        for seed in range(40):
            Storm(seed).rage()

    with pytest.raises(Violation, match="both master of"):
        rage()


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_start_together_have_a_master_soon_and_for_good(seed):
    cluster = SimulatedCluster(5, random.Random(seed))
    for index in range(5):
        cluster.start(index)
    took = cluster.run_until_agreed(BOUND_S)
    assert took is not None
    assert took < 3.0
    assert stays(cluster, CALM_S)


@pytest.mark.parametrize("seed", range(5))
def test_newcomer_deposes_nobody_whatever_term_it_brings(seed):
    cluster = settled(seed, size=4)
    master = master_of(cluster)
    cluster.kill((master.index + 1) % 4)
    cluster.clock.run_until(cluster.clock.now + 20.0)
    newcomer = cluster.hosts[(master.index + 1) % 4]
    newcomer.term = random.Random(seed).randrange(1 << 50)
    cluster.start(newcomer.index)
    assert cluster.run_until_agreed(BOUND_S) is not None
    assert master_of(cluster) is master
    assert stays(cluster, CALM_S)


@pytest.mark.parametrize("seed", range(5))
def test_killed_master_is_replaced_within_two_seconds(seed):
    cluster = settled(seed)
    master = master_of(cluster)
    cluster.kill(master.index)
    cluster.clock.run_until(cluster.clock.now + 2.0)
    assert master_of(cluster) is not master
    assert cluster.agreed()


@pytest.mark.parametrize("seed", range(5))
def test_silent_master_is_replaced_within_ten_seconds(seed):
    cluster = settled(seed)
    master = master_of(cluster)
    others = [host for host in cluster.hosts if host is not master]
    split(cluster, {master.index})
    cluster.clock.run_until(cluster.clock.now + 10.0)
    (successor,) = {node_of(host).machine.master for host in others}
    assert successor in {host.name for host in others}
    names = sorted(host.name for host in others)
    assert all(node_of(host).alive == names for host in others)
    # It was master of itself alone meanwhile; that deposes nobody.
    cluster.blocked.clear()
    assert cluster.run_until_agreed(BOUND_S) is not None
    assert master_of(cluster).name == successor
    assert stays(cluster, CALM_S)


@pytest.mark.parametrize("seed", range(5))
def test_frozen_master_steps_down_when_it_comes_back(seed):
    cluster = settled(seed)
    master = master_of(cluster)
    cluster.freeze(master.index, 20.0)
    cluster.clock.run_until(cluster.clock.now + 15.0)
    successor = master_of(cluster)
    assert successor is not master
    cluster.clock.run_until(cluster.clock.now + 5.5)
    assert not node_of(master).machine.is_master
    assert cluster.run_until_agreed(BOUND_S) is not None
    assert master_of(cluster) is successor
    assert stays(cluster, CALM_S)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("minority", [1, 2])
def test_split_of_30_s_has_a_master_on_each_side_and_the_many_keep_theirs(seed, minority):
    cluster = settled(seed)
    few = set(random.Random(seed).sample(range(5), minority))
    many = set(range(5)) - few
    split(cluster, few)
    cluster.clock.run_until(cluster.clock.now + 30.0)
    masters = {host.index for host in cluster.hosts if node_of(host).machine.is_master}
    assert (len(masters & few), len(masters & many)) == (1, 1)
    cluster.blocked.clear()
    assert cluster.run_until_agreed(BOUND_S) is not None
    assert master_of(cluster).index in many
    assert stays(cluster, CALM_S)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [2, 5])
def test_link_that_comes_and_goes_is_no_election(seed, size):
    cluster = settled(seed, size)
    claims = dict(cluster.masters)
    for _ in range(30):
        one, other = random.Random(seed).sample(range(size), 2)
        cluster.cut(one, other)
        cluster.clock.run_until(cluster.clock.now + 2.0)
    assert cluster.masters == claims


@pytest.mark.parametrize("seed", range(5))
def test_goodbye_of_the_master_needs_no_silence(seed):
    cluster = settled(seed)
    master = master_of(cluster)
    cluster.leave(master.index)
    cluster.clock.run_until(cluster.clock.now + 0.5)
    assert master_of(cluster) is not master
