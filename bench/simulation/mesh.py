"""Gossip as gossipsub does it: along a mesh of neighbours, passed on once by each node."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from bench.simulation.clock import Clock
from bench.simulation.host import Delays, Host, Schedule
from bench.simulation.node import SimulatedNode
from protocols.gossip import GossipMessage

__all__ = ["ENVELOPE_BYTES", "Mesh"]

ENVELOPE_BYTES: Final = 205
"""Beside a message itself: origin, number, topic, signature and key (about 170 bytes of pubsub),
and the headers of yamux and noise."""
_DEGREE_LOW, _DEGREE, _DEGREE_HIGH = 4, 6, 12

_encoder = msgspec.msgpack.Encoder()


@dataclass(eq=False)
class _Flight:
    message: GossipMessage
    size: int
    seen: set[tuple[int, int]]
    """Which hosts have it, by index and incarnation."""


class Mesh:
    """What gossip goes along, with degrees as in `node/membership/gossip.py`.

    Its control messages (at most some per second and node) are left out.

    Attributes:
        messages: sent per host, duplicates included.
        sent_bytes: the same in bytes.

    Args:
        clock: whose time it is.
        hosts: by index.
        rng: which neighbours are chosen.
        blocked: pairs (from, to) between which nothing arrives.
        delays: of a message on one hop.
        schedule: how a message gets to its host.
    """

    def __init__(
        self,
        clock: Clock,
        hosts: list[Host],
        rng: random.Random,
        blocked: set[tuple[int, int]],
        delays: Delays,
        schedule: Schedule,
    ) -> None:
        self.messages: Counter[int] = Counter()
        self.sent_bytes: Counter[int] = Counter()
        self._clock = clock
        self._hosts = hosts
        self._rng = rng
        self._blocked = blocked
        self._delays = delays
        self._schedule = schedule

    def publish(self, host: Host, message: GossipMessage) -> None:
        """Send a message of a host's own to its mesh."""
        size = len(_encoder.encode(message)) + ENVELOPE_BYTES
        self._forward(host, _Flight(message, size, {(host.index, host.incarnation)}), -1)

    def keep(self, host: Host) -> None:
        """Give a host neighbours if it has too few, and take some if it has too many."""
        if len(host.mesh) < _DEGREE_LOW:
            others = sorted(host.links.keys() - host.mesh)
            for index in self._rng.sample(others, min(len(others), _DEGREE - len(host.mesh))):
                host.mesh.add(index)
                self._hosts[index].mesh.add(host.index)
        elif len(host.mesh) > _DEGREE_HIGH:
            for index in self._rng.sample(sorted(host.mesh), len(host.mesh) - _DEGREE):
                host.mesh.discard(index)
                self._hosts[index].mesh.discard(host.index)

    def _forward(self, host: Host, flight: _Flight, source: int) -> None:
        for index in host.mesh:
            if index == source:
                continue
            self.messages[host.index] += 1
            self.sent_bytes[host.index] += flight.size
            if (host.index, index) in self._blocked:
                continue
            for copy, delay in enumerate(self._delays()):
                target = self._hosts[index]
                arrive = partial(self._arrive, target, host.index, flight, copy > 0)
                self._schedule(target, delay, arrive)

    def _arrive(
        self, host: Host, source: int, flight: _Flight, duplicate: bool, node: SimulatedNode
    ) -> None:
        """Take a message in. A duplicate is one that the network made: no filter catches it."""
        who = (host.index, host.incarnation)
        if who in flight.seen and not duplicate:
            return
        if who not in flight.seen:
            flight.seen.add(who)
            self._forward(host, flight, source)
        node.take(flight.message, host.local(self._clock.now))
