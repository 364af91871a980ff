"""The connections between the hosts of a simulated cluster."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

from bench.simulation.clock import Clock
from bench.simulation.host import Host, HostLink, Schedule
from bench.simulation.node import SimulatedNode

__all__ = ["Links"]

_SILENCE_S: Final = 4.0
_NOTICE_S: Final = 0.07
"""After which the end of a process is noticed at the other end of its connections."""


class Links:
    """Connects all hosts with each other, over and over.

    A link comes up some tenths of a second after both ends are there, and both greet on it. It ends
    at once with a process, and after 4 s in which nothing comes through.

    Args:
        clock: whose time it is.
        hosts: by index.
        rng: how long things take.
        blocked: pairs (from, to) between which nothing arrives.
        schedule: has a host do something.
    """

    def __init__(
        self,
        clock: Clock,
        hosts: list[Host],
        rng: random.Random,
        blocked: set[tuple[int, int]],
        schedule: Schedule,
    ) -> None:
        self._clock = clock
        self._hosts = hosts
        self._rng = rng
        self._blocked = blocked
        self._schedule = schedule

    def look_after(self, host: Host, node: SimulatedNode) -> None:
        """Beat on a host's links, and connect where there is none; to be called every second."""
        now = self._clock.now
        for peer in self._hosts:
            if peer is host or not self._is_open(host, peer) or peer.frozen_until > now:
                continue
            link = host.links.get(peer.index)
            if link is None:
                if host.index < peer.index:
                    wait = self._rng.uniform(0.1, 0.8)
                    self._clock.after(wait, partial(self._connect, host, peer))
            elif link.incarnation == peer.incarnation:
                link.heard_at = now
                node.beat(peer.name, host.local(now))
        for index, link in list(host.links.items()):
            other_start = self._hosts[index].incarnation != link.incarnation
            if other_start or now - link.heard_at > _SILENCE_S:
                self.cut(host, self._hosts[index])

    def greet(self, host: Host) -> None:
        """Have a host send its greeting on all its links."""
        for index in host.links:
            if (host.index, index) not in self._blocked:
                self._schedule(host, 0.0, partial(self._greet, self._hosts[index]))

    def cut(self, host: Host, peer: Host) -> None:
        """End the link between two hosts; they make another when they can."""
        self._lose(host, peer)
        self._lose(peer, host)

    def ended(self, host: Host) -> None:
        """Have the others notice that a host's process has ended."""
        for index in list(host.links):
            del host.links[index]
            if (host.index, index) not in self._blocked:
                self._clock.after(_NOTICE_S, partial(self._lose, self._hosts[index], host))

    def _is_open(self, host: Host, peer: Host) -> bool:
        pairs = {(host.index, peer.index), (peer.index, host.index)}
        return host.node is not None and peer.node is not None and not pairs & self._blocked

    def _connect(self, host: Host, peer: Host) -> None:
        if not self._is_open(host, peer) or peer.index in host.links:
            return
        for one, other in ((host, peer), (peer, host)):
            one.links[other.index] = HostLink(other.incarnation, self._clock.now)
            self._schedule(one, 0.0, lambda node: node.link_up())
            self._schedule(one, 0.0, partial(self._greet, other))

    def _greet(self, other: Host, node: SimulatedNode) -> None:
        hello = node.hello()
        delay = self._rng.uniform(0.005, 0.03)
        self._schedule(
            other, delay, lambda greeted: greeted.take(hello, other.local(self._clock.now))
        )

    def _lose(self, host: Host, peer: Host) -> None:
        if host.links.pop(peer.index, None) is None:
            return
        host.mesh.discard(peer.index)
        self._schedule(
            host, 0.0, lambda node: node.link_lost(peer.name, host.local(self._clock.now))
        )
        self._clock.after(self._rng.uniform(0.05, 0.6), partial(self._connect, host, peer))
