"""Many machines, a network that loses, delays and splits, and nodes that restart."""

import random
from dataclasses import dataclass, field

import pytest

from node.election.machine import ElectionMachine, MasterChanged, PersistTerm, Send
from protocols.gossip import Heartbeat

TICK_S = 0.25
SETTLE_S = 20.0


@dataclass
class World:
    """A simulated cluster. Messages are heartbeats (claims) and terms (from records)."""

    rng: random.Random
    size: int
    now: float = 0.0
    loss: float = 0.0
    delay: float = 0.05
    groups: list[int] = field(default_factory=list)
    machines: dict[str, ElectionMachine] = field(default_factory=dict)
    disks: dict[str, int] = field(default_factory=dict)
    flying: list[tuple[float, str, str, Heartbeat | int]] = field(default_factory=list)
    terms_sent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self):
        self.groups = [0] * self.size
        for index in range(self.size):
            name = f"n{index}"
            self.disks[name] = self.rng.randrange(5)
            self.start(name)

    def start(self, name):
        self.machines[name] = ElectionMachine(name, self.disks[name], self.now)

    def linked(self, a, b):
        return self.groups[int(a[1:])] == self.groups[int(b[1:])]

    def send(self, source, message):
        for target in self.machines:
            if target != source and self.rng.random() >= self.loss:
                arrival = self.now + self.rng.random() * self.delay
                self.flying.append((arrival, source, target, message))

    def carry_out(self, name, effects):
        for effect in effects:
            match effect:
                case PersistTerm(term=term):
                    assert term > self.disks[name], "a term was persisted twice, or fell"
                    self.disks[name] = term
                case Send(heartbeat=heartbeat):
                    assert heartbeat.term <= self.disks[name], "claimed before it was persisted"
                    self.send(name, heartbeat)
                case MasterChanged():
                    pass

    def step(self):
        self.now += TICK_S
        due = sorted(each for each in self.flying if each[0] <= self.now)
        self.flying = [each for each in self.flying if each[0] > self.now]
        for _, source, target, message in due:
            machine = self.machines[target]
            if not self.linked(source, target):
                continue
            if isinstance(message, Heartbeat):
                self.carry_out(target, machine.heard(message, self.now))
            else:
                self.carry_out(target, machine.heard_term(message, self.now))
        for name, machine in self.machines.items():
            rank = sum(
                self.linked(name, other) and other < name
                for other in self.machines
                if other != name
            )
            self.carry_out(name, machine.tick(rank, self.now))
            if self.now - self.terms_sent.get(name, -9.0) >= 1.0:
                self.terms_sent[name] = self.now
                self.send(name, machine.term)

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.step()

    def masters(self):
        return {name for name, machine in self.machines.items() if machine.is_master}

    def assert_agreed(self):
        beliefs = {machine.master for machine in self.machines.values()}
        terms = {machine.term for machine in self.machines.values()}
        assert len(self.masters()) == 1, self.masters()
        assert beliefs == self.masters()
        assert len(terms) == 1


@pytest.mark.parametrize("seed", range(60))
def test_one_master_after_whatever_happened(seed):
    rng = random.Random(seed)
    world = World(rng, size=rng.randint(1, 7))
    for _ in range(rng.randint(1, 5)):
        world.loss = rng.choice([0.0, 0.1, 0.5, 0.9])
        world.delay = rng.choice([0.01, 0.3, 2.0])
        match rng.randrange(3):
            case 0:
                world.groups = [rng.randrange(2) for _ in range(world.size)]
            case 1:
                world.start(f"n{rng.randrange(world.size)}")
        world.run(rng.uniform(1.0, 15.0))
    world.loss, world.delay, world.groups = 0.0, 0.05, [0] * world.size
    world.run(SETTLE_S)
    world.assert_agreed()
    # And nothing changes any more: no election every few seconds.
    masters, term = world.masters(), world.machines["n0"].term
    world.run(30.0)
    assert (world.masters(), world.machines["n0"].term) == (masters, term)


@pytest.mark.parametrize("seed", range(20))
def test_moderate_loss_does_not_unseat_a_master(seed):
    world = World(random.Random(seed), size=4)
    world.run(SETTLE_S)
    masters = world.masters()
    world.loss = 0.05
    world.run(60.0)
    assert world.masters() == masters


@pytest.mark.parametrize("seed", range(20))
def test_each_side_of_a_split_has_a_master_and_the_heal_leaves_one(seed):
    world = World(random.Random(seed), size=5)
    world.run(SETTLE_S)
    world.groups = [0, 0, 0, 1, 1]
    world.run(SETTLE_S)
    sides = [
        {name for name in world.masters() if world.groups[int(name[1:])] == side} for side in (0, 1)
    ]
    assert [len(side) for side in sides] == [1, 1]
    world.groups = [0] * 5
    world.run(SETTLE_S)
    world.assert_agreed()
