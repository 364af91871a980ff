"""Everything that may happen to a cluster, by chance, and then a network that is whole."""

from __future__ import annotations

import random

from bench.simulation.cluster import SimulatedCluster
from node.election.machine import HEARTBEAT_S, PATIENCE_S, STAGGER_S, Effect

SILENCE_S = 5.0
"""Until a link that is dead is noticed: a beat every second, 4 s to answer it."""
RECONNECT_S = 2.0
RECORD_S = 2.0
"""Until a record is published and gossipsub has a mesh to send it through."""
TICK_S = 0.25
ANSWER_S = 1.25

VIEWS_WHOLE_S = SILENCE_S + RECONNECT_S + RECORD_S
CLAIM_S = PATIENCE_S + 6 * STAGGER_S + TICK_S
"""Until somebody claims, if there is no master: the first in rank at the latest, to whom six nodes
may seem to come first that are dead."""
HIGHER_TERM_S = RECORD_S + ANSWER_S + TICK_S + HEARTBEAT_S
"""Until a master has heard of each higher term, claimed one beyond, and is heard by all."""
BOUND_S = VIEWS_WHOLE_S + CLAIM_S + HIGHER_TERM_S


class Storm:
    """A cluster of 1 to 7 nodes to which things happen.

    Args:
        seed: decides on everything.
    """

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.size = rng.randint(1, 7)
        self._pairs = [(a, b) for a in range(self.size) for b in range(self.size) if a != b]
        self._crashes = rng.choice([0.0, 0.02, 0.2])
        self._loss = self._again = 0.0
        self._delay = 0.05
        self.cluster = SimulatedCluster(
            self.size, rng, delays=self._delays, skewed=True, crash=self._crash
        )
        for index in range(self.size):
            self.cluster.hosts[index].term = rng.choice(
                [0, rng.randrange(9), rng.randrange(1 << 40)]
            )
            self.cluster.clock.after(rng.uniform(0.0, 5.0), lambda index=index: self._start(index))

    def rage(self) -> None:
        """Let things happen for some time, one after the other."""
        for _ in range(self._rng.randint(2, 8)):
            self._loss = self._rng.choice([0.0, 0.0, 0.1, 0.5, 0.9])
            self._again = self._rng.choice([0.0, 0.3])
            self._delay = self._rng.choice([0.01, 0.3, 3.0])
            self._happen()
            self._pass(self._rng.uniform(0.5, 15.0))

    def calm_down(self) -> None:
        """Make the network whole and start what does not run; end when none is frozen."""
        self._crashes = self._loss = self._again = 0.0
        self._delay = 0.02
        self.cluster.blocked.clear()
        for host in self.cluster.hosts:
            self._start(host.index)
        thawed = max(host.frozen_until for host in self.cluster.hosts)
        # What was under way for long is still part of the storm.
        self.cluster.clock.run_until(max(thawed, self.cluster.clock.now + 3.0))

    def _happen(self) -> None:
        rng, cluster = self._rng, self.cluster
        index = rng.randrange(self.size)
        match rng.randrange(7):
            case 0:
                sides = [rng.randrange(2) for _ in range(self.size)]
                self._block({(a, b) for a, b in self._pairs if sides[a] != sides[b]})
            case 1:
                self._block({pair for pair in self._pairs if rng.random() < 0.3})
            case 2:
                self._block(set())
            case 3:
                cluster.kill(index)
            case 4:
                cluster.kill(index)
                cluster.clock.after(rng.uniform(0.1, 12.0), lambda: self._start(index))
            case 5:
                cluster.freeze(index, rng.uniform(1.0, 25.0))
            case _:
                master = cluster.master()
                if master is not None:
                    cluster.kill(master.index)

    def _block(self, pairs: set[tuple[int, int]]) -> None:
        self.cluster.blocked.clear()
        self.cluster.blocked.update(pairs)

    def _pass(self, seconds: float) -> None:
        self.cluster.clock.run_until(self.cluster.clock.now + seconds)

    def _start(self, index: int) -> None:
        if self.cluster.hosts[index].node is None:
            self.cluster.start(index)

    def _crash(self, _: Effect) -> bool:
        return self._rng.random() < self._crashes

    def _delays(self) -> tuple[float, ...]:
        if self._rng.random() < self._loss:
            return ()
        copies = 1 + (self._rng.random() < self._again)
        return tuple(self._rng.uniform(0.001, self._delay) for _ in range(copies))
