"""A simulated cluster: nodes that start, stop, freeze and crash, and what must never happen."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.simulation.clock import Clock
from bench.simulation.host import Delays, Host
from bench.simulation.links import Links
from bench.simulation.mesh import Mesh
from bench.simulation.node import SimulatedNode, typical_record
from node.election.machine import Effect, MasterChanged, PersistTerm, Send
from protocols.gossip import Leave

__all__ = ["Crash", "Host", "SimulatedCluster", "Violation"]

_TICK_S: Final = 0.25


class Violation(Exception):
    """Something happened that never may."""


class Crash(Exception):
    """The node ends in the middle of what it does."""


class SimulatedCluster:
    """Hosts on one network.

    Attributes:
        clock: runs everything.
        hosts: the machines, by index.
        blocked: pairs (from, to) between which nothing arrives.
        mesh: carries the gossip, and counts it.
        masters: by term, who was master in it: index and incarnation.

    Args:
        size: hosts; none runs before it is started.
        rng: where all chance comes from.
        delays: of a message on one hop; 5 to 15 ms if left out.
        skewed: whether the clocks differ in origin and, slightly, in rate.
        crash: asked before each effect of an election whether the host crashes there.
    """

    def __init__(
        self,
        size: int,
        rng: random.Random,
        *,
        delays: Delays | None = None,
        skewed: bool = False,
        crash: Callable[[Effect], bool] = lambda _: False,
    ) -> None:
        self.clock = Clock()
        self.blocked: set[tuple[int, int]] = set()
        self.masters: dict[int, tuple[int, int]] = {}
        self._crash = crash
        self._rng = rng
        self.hosts = [
            Host(
                index,
                origin=rng.uniform(0.0, 1e6) if skewed else 0.0,
                rate=rng.uniform(0.999, 1.001) if skewed else 1.0,
            )
            for index in range(size)
        ]
        delays = delays or (lambda: (rng.uniform(0.005, 0.015),))
        common = (self.clock, self.hosts, rng, self.blocked)
        self.mesh = Mesh(*common, delays, self._schedule)
        self._links = Links(*common, self._schedule)

    @property
    def running(self) -> list[Host]:
        """The hosts with a process, frozen ones included."""
        return [host for host in self.hosts if host.node is not None]

    def agreed(self) -> bool:
        """Whether every running node sees all of them alive and follows one that is master."""
        names = sorted(host.name for host in self.running)
        nodes = [host.node for host in self.running if host.node is not None]
        followed = {(node.machine.master, node.machine.master_term) for node in nodes}
        masters = [node for node in nodes if node.machine.is_master]
        return len(followed) == len(masters) == 1 and all(node.alive == names for node in nodes)

    def master(self) -> Host | None:
        """The running host that is master of the highest term."""
        masters = [
            (host.node.machine.term, host)
            for host in self.running
            if host.node is not None and host.node.machine.is_master
        ]
        return max(masters, key=lambda each: each[0])[1] if masters else None

    def run_until_agreed(self, limit_s: float, step_s: float = 0.05) -> float | None:
        """Let time pass until all agree; return how long that took, or None at the limit."""
        started = self.clock.now
        while not self.agreed():
            if self.clock.now - started >= limit_s:
                return None
            self.clock.run_until(self.clock.now + step_s)
        return self.clock.now - started

    def start(self, index: int) -> None:
        """Start a host's process, with the term that it has persisted."""
        host = self.hosts[index]
        host.incarnation += 1
        host.frozen_until, host.mesh = 0.0, set()
        host.node = SimulatedNode(
            typical_record(host.name, host.incarnation, host.term),
            host.local(self.clock.now),
            carry_out=partial(self._carry_out, host),
            poke=partial(self._plan, host),
            greet=partial(self._links.greet, host),
        )
        self._every(host, _TICK_S, lambda node: node.tick(host.local(self.clock.now)))
        self._every(host, 1.0, partial(self._look_after, host))
        self._plan(host)

    def kill(self, index: int) -> None:
        """End a host's process without a word."""
        host = self.hosts[index]
        host.node = None
        self._links.ended(host)

    def cut(self, index: int, peer: int) -> None:
        """End the link between two hosts; they make another when they can."""
        self._links.cut(self.hosts[index], self.hosts[peer])

    def freeze(self, index: int, seconds: float) -> None:
        """Stop a host's process, which finds on going on whatever came meanwhile."""
        self.hosts[index].frozen_until = self.clock.now + seconds

    def leave(self, index: int) -> None:
        """End a host's process with a goodbye."""
        host = self.hosts[index]
        self.mesh.publish(host, Leave(host.name, host.incarnation))
        self.kill(index)

    def _schedule(
        self, host: Host, seconds: float, action: Callable[[SimulatedNode], None]
    ) -> None:
        do = partial(self._do, host, host.incarnation, action)
        self.clock.after(seconds, do)

    def _do(self, host: Host, incarnation: int, action: Callable[[SimulatedNode], None]) -> None:
        if host.node is None or host.incarnation != incarnation:
            return
        if self.clock.now < host.frozen_until:
            self.clock.at(host.frozen_until, partial(self._do, host, incarnation, action))
            return
        try:
            action(host.node)
        except Crash:
            self.kill(host.index)
            self.clock.after(self._rng.uniform(0.5, 5.0), partial(self._start_again, host))

    def _start_again(self, host: Host) -> None:
        if host.node is None:
            self.start(host.index)

    def _every(self, host: Host, seconds: float, action: Callable[[SimulatedNode], None]) -> None:
        def again(node: SimulatedNode) -> None:
            self._schedule(host, seconds / host.rate, again)
            action(node)

        self._schedule(host, self._rng.uniform(0.0, seconds), again)

    def _plan(self, host: Host) -> None:
        """Set the time of the next record anew."""
        if host.node is None:
            return
        host.publishing += 1
        due = host.node.due({self.hosts[peer].name for peer in host.links})
        wait = (due - host.local(self.clock.now)) / host.rate
        self._schedule(host, max(0.0, wait), partial(self._publish, host, host.publishing))

    def _publish(self, host: Host, turn: int, node: SimulatedNode) -> None:
        if turn == host.publishing:
            self.mesh.publish(host, node.next_record(host.local(self.clock.now)))
            self._plan(host)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        if self._crash(effect):
            raise Crash
        match effect:
            case PersistTerm(term=term):
                if term <= host.term:
                    raise Violation(f"{host.name} went from term {host.term} to {term}")
                host.term = term
            case Send(heartbeat=heartbeat):
                if heartbeat.term > host.term:
                    raise Violation(f"{host.name} claimed a term that is not on its disk")
                self.mesh.publish(host, heartbeat)
            case MasterChanged(peer_id=peer_id, term=term):
                if peer_id != host.name:
                    return
                who = (host.index, host.incarnation)
                if self.masters.setdefault(term, who) != who:
                    raise Violation(f"{who} and {self.masters[term]} are both master of {term}")

    def _look_after(self, host: Host, node: SimulatedNode) -> None:
        self._links.look_after(host, node)
        self.mesh.keep(host)
