"""The open connections to peers, and which of them is used.

Of two nodes the one with the lower peer id chooses (`node.preference`) and says so on each
heartbeat; the other follows as long as that link lives. What they know of a link differs (each
measures only what it receives), so without that they would use different ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import trio
from libp2p.abc import IMuxedConn
from libp2p.network.connection.swarm_connection import SwarmConn
from loguru import logger

from node.preference import Standing, choose_link
from node.rates import LinkKey, Rates
from node.routes import Route, route_between
from node.transport.yamux.connection import YamuxConnection
from protocols.gossip import InterfaceRecord
from protocols.link import Beat, LinkEnd

__all__ = ["Link", "LinkListener", "LinkTable", "TableSide"]

LinkListener: TypeAlias = Callable[["Link"], None]
"""Told of a link; must not block."""

_ROUND_TRIPS: Final = 8


class Link:
    """An open connection to a peer.

    Args:
        peer_id: the peer, in base58.
        address: the other end, as a multiaddr.
        end: the interface that it leaves this node by.
        connection: what carries it.
        outbound: whether this node opened it.
        local_ip: its address here; empty when it cannot be told.

    Attributes:
        route: over which interface of ours, and to which address of the peer's. The port of a
            connection that the peer opened is not one that it listens on.
        rtt_s: the last heartbeat's round trip; None before the first.
        in_use: whether the next stream to the peer takes it, in this node's opinion.
    """

    def __init__(
        self,
        peer_id: str,
        address: str,
        end: LinkEnd,
        connection: SwarmConn,
        *,
        outbound: bool,
        local_ip: str = "",
    ) -> None:
        self.peer_id = peer_id
        self.connection = connection
        self.outbound = outbound
        self.local_ip = local_ip
        self.end = end
        self.route: Route = route_between(address, end, None)
        self.rtt_s: float | None = None
        self.in_use = False
        self._round_trips: deque[float] = deque(maxlen=_ROUND_TRIPS)
        self._news = trio.Event()

    @property
    def key(self) -> LinkKey:
        """What its measurements are kept under: they outlive the connection."""
        return self.peer_id, *self.route.hardware

    @property
    def latency_s(self) -> float | None:
        """The least of the last round trips: what the link takes when nothing queues on it."""
        return min(self._round_trips, default=None)

    def learn(self, theirs: LinkEnd) -> None:
        """Take note of the interface at the other end."""
        self.route = route_between(self.route.address, self.end, theirs)

    def answered(self, rtt_s: float) -> None:
        """Take note of a heartbeat's round trip."""
        self.rtt_s = rtt_s
        self._round_trips.append(rtt_s)

    def tell(self) -> None:
        """Have the next heartbeat sent at once."""
        self._news.set()

    async def wait_for_news(self) -> None:
        """Return once `tell` has been called."""
        await self._news.wait()
        self._news = trio.Event()


class LinkTable:
    """Links by connection, which of them is used, and who wants to know of them.

    Args:
        self_id: this node's peer id.
    """

    def __init__(self, self_id: str) -> None:
        self.rates = Rates()
        self._self_id = self_id
        self._links: dict[IMuxedConn, Link] = {}
        self._told: dict[str, Link] = {}
        self._interfaces: dict[str, tuple[InterfaceRecord, ...]] = {}
        self._on_up: list[LinkListener] = []
        self._on_down: list[LinkListener] = []
        self._on_beat: list[LinkListener] = []

    def __contains__(self, link: Link) -> bool:
        return link.connection.muxed_conn in self._links

    @property
    def all(self) -> tuple[Link, ...]:
        """Every link, the one in use first of each peer."""
        peers = sorted({link.peer_id for link in self._links.values()})
        return tuple(link for peer_id in peers for link in self.to(peer_id))

    def to(self, peer_id: str) -> tuple[Link, ...]:
        """Return the links to a peer: the one in use, then the others, best first."""
        links = (link for link in self._links.values() if link.peer_id == peer_id)
        return tuple(sorted(links, key=lambda each: (not each.in_use, self._standing(each).order)))

    def on(self, connection: IMuxedConn) -> Link | None:
        """Return the link that a connection is; None if it is none (yet, or any more)."""
        return self._links.get(connection)

    def chooses(self, peer_id: str) -> bool:
        """Whether this node is the one of the two that chooses the link to use."""
        return self._self_id < peer_id

    def listen(
        self, up: LinkListener | None, down: LinkListener | None, beat: LinkListener | None
    ) -> None:
        """Have functions called from now on."""
        self._on_up += [up] if up else []
        self._on_down += [down] if down else []
        self._on_beat += [beat] if beat else []

    def add(self, link: Link) -> None:
        """Take a link in and tell of it."""
        self._links[link.connection.muxed_conn] = link
        self._recognise(link)
        self._choose(link.peer_id)
        for listener in self._on_up:
            listener(link)

    def remove(self, link: Link) -> bool:
        """Take a link out and tell of it; return False if it was not here any more."""
        if self._links.pop(link.connection.muxed_conn, None) is None:
            return False
        if self._told.get(link.peer_id) is link:
            del self._told[link.peer_id]
        self._choose(link.peer_id)
        for listener in self._on_down:
            listener(link)
        return True

    def know(self, peer_id: str, interfaces: tuple[InterfaceRecord, ...]) -> tuple[Link, ...]:
        """Take note of a peer's interfaces; return the links to such that it has no more."""
        before = {each.name for each in self._interfaces.get(peer_id, ())}
        gone = before - {each.name for each in interfaces}
        self._interfaces[peer_id] = interfaces
        links = self.to(peer_id)
        for link in links:
            self._recognise(link)
        self._choose(peer_id)
        return tuple(link for link in links if link.route.remote in gone)

    def end_of(self, peer_id: str, ip: str) -> LinkEnd | None:
        """Return the interface of a peer's that has an address; None while that is not known."""
        for each in self._interfaces.get(peer_id, ()):
            if ip in each.addresses:
                return LinkEnd(each.name, each.klass, each.speed_mbps)
        return None

    def forget(self, peer_id: str) -> None:
        """Forget the interfaces of a peer that is gone."""
        self._interfaces.pop(peer_id, None)

    def note_rate(self, link: Link, bytes_per_s: float) -> None:
        """Take note of a rate that was measured on a link, and tell the peer of it."""
        self.rates.note(link.key, bytes_per_s, trio.current_time())
        link.tell()
        self._choose(link.peer_id)

    def say(self, link: Link) -> Beat:
        """Return what this end of a link knows of it."""
        preferred = self.chooses(link.peer_id) and link.in_use
        measured = self.rates.own(link.key, trio.current_time())
        return Beat(0, link.end, preferred, measured)

    def told(self, link: Link, beat: Beat) -> None:
        """Take in what the other end of a link knows of it."""
        if link not in self:
            return
        if beat.end is not None:
            link.learn(beat.end)
        if beat.measured is not None:
            self.rates.told(link.key, beat.measured, trio.current_time())
        if beat.preferred:
            self._told[link.peer_id] = link
        elif self._told.get(link.peer_id) is link:
            del self._told[link.peer_id]
        self._choose(link.peer_id)

    def answered(self, link: Link, rtt_s: float) -> None:
        """Take note of a heartbeat and tell of it."""
        link.answered(rtt_s)
        self._choose(link.peer_id)
        for listener in self._on_beat:
            listener(link)

    def _recognise(self, link: Link) -> None:
        """Find the other end's interface by its address, until the other end tells of it."""
        if link.route.remote or not link.route.address:
            return
        end = self.end_of(link.peer_id, link.route.address.split("/")[2])
        if end is not None:
            link.learn(end)

    def _choose(self, peer_id: str) -> None:
        links = [link for link in self._links.values() if link.peer_id == peer_id]
        if not links:
            return
        current = next((link for link in links if link.in_use), None)
        told = None if self.chooses(peer_id) else self._told.get(peer_id)
        chosen = told or self._best(links, current)
        if chosen is current:
            return
        for link in links:
            link.in_use = link is chosen
            link.tell()
        if len(links) > 1:
            route = chosen.route
            logger.info("streams to {} now go over {} ({})", peer_id, route.interface, route.klass)

    def _best(self, links: Sequence[Link], current: Link | None) -> Link:
        index = links.index(current) if current is not None else None
        return links[choose_link([self._standing(link) for link in links], index)]

    def _standing(self, link: Link) -> Standing:
        return Standing(
            link.route.klass,
            link.route.speed_mbps,
            self.rates.bytes_per_s(link.key),
            link.latency_s,
        )


class TableSide:
    """See `node.heartbeat.LinkSide`: this end of a link that is in a table."""

    def __init__(self, table: LinkTable, link: Link) -> None:
        self._table = table
        self._link = link

    def say(self) -> Beat:
        return self._table.say(self._link)

    def told(self, beat: Beat) -> None:
        self._table.told(self._link, beat)

    def answered(self, rtt_s: float) -> None:
        self._table.answered(self._link, rtt_s)

    def silent_s(self) -> float | None:
        muxed = self._link.connection.muxed_conn
        if not isinstance(muxed, YamuxConnection):
            return None
        return trio.current_time() - muxed.heard_at

    async def wait_for_news(self) -> None:
        await self._link.wait_for_news()
