"""The open connections to peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from libp2p.network.connection.swarm_connection import SwarmConn

from node.routes import Route

__all__ = ["Link", "LinkListener", "LinkTable"]

LinkListener: TypeAlias = Callable[["Link"], None]
"""Told of a link; must not block."""


class Link:
    """An open connection to a peer.

    Attributes:
        peer_id: the peer, in base58.
        route: over which interface of ours, and to which address of the peer's. The port of a
            connection that the peer opened is not one that it listens on.
        connection: what carries it.
        outbound: whether this node opened it.
        rtt_s: the last heartbeat's round trip; None before the first.
    """

    def __init__(self, peer_id: str, route: Route, connection: SwarmConn, outbound: bool) -> None:
        self.peer_id = peer_id
        self.route = route
        self.connection = connection
        self.outbound = outbound
        self.rtt_s: float | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        """Lower is the better link. Whole milliseconds, so that noise does not decide."""
        return *self.route.rank, round(self.rtt_s * 1000) if self.rtt_s is not None else 1000


class LinkTable:
    """Links by connection, and who wants to know of them."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self._on_up: list[LinkListener] = []
        self._on_down: list[LinkListener] = []
        self._on_beat: list[LinkListener] = []

    def __contains__(self, link: Link) -> bool:
        return id(link.connection) in self._links

    @property
    def all(self) -> tuple[Link, ...]:
        """Every link, the best of each peer first."""
        return tuple(sorted(self._links.values(), key=lambda each: (each.peer_id, each.order)))

    def to(self, peer_id: str) -> tuple[Link, ...]:
        """Return the links to a peer, best first."""
        return tuple(link for link in self.all if link.peer_id == peer_id)

    def listen(
        self, up: LinkListener | None, down: LinkListener | None, beat: LinkListener | None
    ) -> None:
        """Have functions called from now on."""
        self._on_up += [up] if up else []
        self._on_down += [down] if down else []
        self._on_beat += [beat] if beat else []

    def add(self, link: Link) -> None:
        """Take a link in and tell of it."""
        self._links[id(link.connection)] = link
        for listener in self._on_up:
            listener(link)

    def remove(self, connection: SwarmConn) -> Link | None:
        """Take a link out and tell of it; None if it is not here any more."""
        link = self._links.pop(id(connection), None)
        if link is not None:
            for listener in self._on_down:
                listener(link)
        return link

    def beat(self, link: Link, rtt_s: float) -> None:
        """Note a heartbeat and tell of it."""
        link.rtt_s = rtt_s
        for listener in self._on_beat:
            listener(link)
