"""Walks through everything that a few election machines can do to each other, to some depth.

A message that was sent may arrive at any later time, any number of times, or never. A node's time
passes when the walk says so, whatever the others' does. A node may crash between any two effects,
and starts again from what it had persisted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from node.election.machine import Effect, ElectionMachine, MasterChanged, PersistTerm, Place, Send
from protocols.gossip import Heartbeat

TICK_S = 0.5
LONGEST_SILENCE_S = 10.0


class Violation(Exception):
    """Something happened that never may."""


@dataclass(frozen=True)
class Node:
    machine: ElectionMachine
    incarnation: int = 1
    disk: int = 0
    now: float = 0.0

    @property
    def key(self) -> tuple[object, ...]:
        machine = self.machine
        return self.incarnation, self.disk, machine.term, machine.master, machine.master_term


@dataclass(frozen=True)
class World:
    nodes: dict[str, Node]
    sent: frozenset[Heartbeat] = frozenset()
    masters: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By term: who was master in it, and since which start."""
    steps: tuple[str, ...] = ()

    @property
    def key(self) -> object:
        nodes = tuple(node.key for node in self.nodes.values())
        return nodes, self.sent, tuple(sorted(self.masters.items()))


def new_world(size: int) -> World:
    names = "abcdefg"[:size]
    return World({name: Node(ElectionMachine(name, 1, 0, 0.0)) for name in names})


def explore(size: int, depth: int, *, starts: int = 2) -> int:
    """Try everything up to `depth` steps; return how many different worlds there were.

    Args:
        size: nodes.
        depth: steps in a row.
        starts: how often a node may start.

    Raises:
        Violation: two were master in one term, a term fell, or a term was claimed before it was
            on the disk.
    """
    worlds = {(world := new_world(size)).key: world}
    seen = set(worlds)
    for _ in range(depth):
        following: dict[object, World] = {}
        for world in worlds.values():
            for after in _successors(world, starts):
                if (key := after.key) not in seen:
                    seen.add(key)
                    following[key] = after
        worlds = following
    return len(seen)


def _successors(world: World, starts: int) -> Iterator[World]:
    for name, node in world.nodes.items():
        for step, machine, effects, now in _moves(world, name, node):
            moved = replace(node, machine=machine, now=now)
            yield _carry_out(world, name, moved, effects, step)
            if node.incarnation < starts:
                for survived in range(len(effects) + 1):
                    crashing = f"{step}, crash after {survived}"
                    after = _carry_out(world, name, moved, effects[:survived], crashing)
                    yield _restart(after, name)


def _moves(
    world: World, name: str, node: Node
) -> Iterator[tuple[str, ElectionMachine, list[Effect], float]]:
    everyone = len(world.nodes)
    yield (f"{name} waits", *_wait(node, Place(0, everyone)))
    for claim in world.sent:
        for followers in (1, everyone):
            machine = copy.copy(node.machine)
            effects = machine.heard(claim, Place(0, followers), node.now)
            if effects:
                yield f"{name} has {followers} followers, hears {claim}", machine, effects, node.now
    for other, peer in world.nodes.items():
        if other == name:
            continue
        machine = copy.copy(node.machine)
        effects = machine.heard_term(peer.disk, peer.machine.master or "", node.now)
        if effects:
            yield f"{name} has the record of {other}", machine, effects, node.now
        machine = copy.copy(node.machine)
        machine.joined(other, peer.incarnation, node.now)
        effects = machine.gone(other, Place(0, 1), node.now)
        if effects:
            yield f"{name} finds {other} gone", machine, effects, node.now


def _wait(node: Node, place: Place) -> tuple[ElectionMachine, list[Effect], float]:
    machine, now = copy.copy(node.machine), node.now
    while now < node.now + LONGEST_SILENCE_S:
        now += TICK_S
        if effects := machine.tick(place, now):
            return machine, effects, now
    return machine, [], now


def _carry_out(world: World, name: str, node: Node, effects: list[Effect], step: str) -> World:
    sent, masters, steps = set(world.sent), dict(world.masters), (*world.steps, step)
    for effect in effects:
        match effect:
            case PersistTerm(term=term):
                if term <= node.disk:
                    raise Violation(f"{name} went from term {node.disk} to {term}: {steps}")
                node = replace(node, disk=term)
            case Send(heartbeat=heartbeat):
                sent.add(heartbeat)
            case MasterChanged(peer_id=peer_id, term=term):
                if peer_id != name:
                    continue
                if term > node.disk:
                    raise Violation(f"{name} claims {term} before it is persisted: {steps}")
                if masters.setdefault(term, (name, node.incarnation)) != (name, node.incarnation):
                    raise Violation(f"{name} and {masters[term]} are master of {term}: {steps}")
    return World({**world.nodes, name: node}, frozenset(sent), masters, steps)


def _restart(world: World, name: str) -> World:
    node = world.nodes[name]
    incarnation = node.incarnation + 1
    again = Node(
        ElectionMachine(name, incarnation, node.disk, node.now), incarnation, node.disk, node.now
    )
    return replace(world, nodes={**world.nodes, name: again})
