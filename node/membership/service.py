"""Keeps the view of the cluster: says what this node is, and takes in what the others say."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import msgspec
import trio
from loguru import logger

from node.election.horizon import TermHorizon
from node.errors import PeerUnreachable
from node.host import PeerHost
from node.libp2p_seam import negotiate
from node.links import Link
from node.membership.gossip import Gossip
from node.membership.rhythm import Rhythm
from node.membership.view import Change, ClusterView, Event
from node.messages import read_message, write_message
from node.transport.errors import TransportError
from node.transport.streams import ByteStream
from protocols.errors import Malformed, Truncated
from protocols.framing import FrameReader
from protocols.gossip import GossipMessage, Heartbeat, Hello, Leave, NodeRecord
from protocols.sanity import sane

__all__ = ["HELLO_PROTOCOL", "EventListener", "Membership"]

HELLO_PROTOCOL: Final = "/baton/hello/1"
"""Each side of a new connection sends its record on it, and its claim if it is the master; so does
a new master on every connection. That is sooner than gossip, whose mesh takes a second to form."""

_TICK_S: Final = 0.25
_HELLO_TIMEOUT_S: Final = 5.0
_MAX_HELLO: Final = 64 << 10
_GOODBYE_S: Final = 0.3
_CLOCK_TOLERANCE_S: Final = 180.0

EventListener: TypeAlias = Callable[[Event], None]


class Membership:
    """Gossips this node's record and maintains the view.

    Args:
        host: the node's host.
        own: this node's first record; `update` changes it.
        on_event: called after each change of the view.
        on_claim: called with the claims to be master that are heard.
        own_claim: returns this node's own claim while it is the master.
        on_stranger: called with a peer that turned out to be of another cluster.
        on_known: called with a record of this node that a peer has and that it did not send, at
            least not since it started.
    """

    def __init__(
        self,
        host: PeerHost,
        own: NodeRecord,
        *,
        on_event: EventListener,
        on_claim: Callable[[Heartbeat], None],
        own_claim: Callable[[], Heartbeat | None],
        on_stranger: Callable[[str], None],
        on_known: Callable[[NodeRecord], None],
    ) -> None:
        self.view = ClusterView(own, trio.current_time())
        self._host = host
        self._gossip = Gossip(host.libp2p, own.cluster, host.warden)
        self._on_event = on_event
        self._on_claim = on_claim
        self._own_claim = own_claim
        self._on_stranger = on_stranger
        self._on_known = on_known
        self._wrong_clocks: set[str] = set()
        self._rhythm = Rhythm()
        self._poked = trio.Event()
        self._horizon = TermHorizon(trio.current_time())
        self._told_of_terms = False
        self._nursery: trio.Nursery | None = None
        host.set_handler(HELLO_PROTOCOL, self._take_hello)
        host.on_link(up=self._link_up, down=self._link_down, beat=self._link_alive)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Take part in the cluster while open; say goodbye at the end."""
        async with self._gossip.running() as messages, trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._receive, messages)
            nursery.start_soon(self._publish)
            nursery.start_soon(self._judge)
            try:
                yield
            finally:
                self._nursery = None
                with trio.move_on_after(_GOODBYE_S, shield=True):
                    await self._gossip.publish(Leave(self.view.self_id, self.view.own.incarnation))
                    # Publishing only queues it.
                    await trio.sleep_forever()
                nursery.cancel_scope.cancel()

    async def publish(self, message: GossipMessage) -> None:
        """Send a message to every node that is connected. Nothing is promised."""
        await self._gossip.publish(message)

    def greet(self) -> None:
        """Send this node's record and claim to every connected node, on a stream of its own."""
        if self._nursery is not None:
            # The one in use comes first of each peer's.
            for link in {link.peer_id: link for link in reversed(self._host.links)}.values():
                self._nursery.start_soon(self._send_hello, link)

    def update(self, record: NodeRecord) -> None:
        """Replace this node's record (its sequence is set here) and have it published soon."""
        own = self.view.own
        if msgspec.structs.replace(record, sequence=own.sequence) == own:
            return
        self._merge(msgspec.structs.replace(record, sequence=own.sequence + 1))
        self._rhythm.changed()
        self._poked.set()

    async def _publish(self) -> None:
        while True:
            self._poked = trio.Event()
            present, linked = self.view.present, {link.peer_id for link in self._host.links}
            everywhere = linked >= present - {self.view.self_id}
            due = self._rhythm.due(len(present), linked=everywhere)
            if trio.current_time() < due:
                with trio.move_on_at(due):
                    await self._poked.wait()
                continue
            own = self.view.own
            # The sequence grows each time: it is what tells a sign of life from an echo.
            own = msgspec.structs.replace(own, sequence=own.sequence + 1)
            self._merge(own)
            self._rhythm.published(trio.current_time())
            await self._gossip.publish(own)

    async def _receive(self, messages: AsyncIterator[GossipMessage]) -> None:
        async for message in messages:
            self._take(message)

    async def _judge(self) -> None:
        while True:
            await trio.sleep(_TICK_S)
            self._report(self.view.tick(trio.current_time()))

    def _take(self, message: GossipMessage) -> None:
        if not isinstance(message, Leave) and not self._admits(message):
            return
        if isinstance(message, NodeRecord):
            self._merge(message)
        elif isinstance(message, Leave):
            self._report(self.view.leave(message))
        else:
            self._on_claim(message)

    def _admits(self, message: NodeRecord | Heartbeat) -> bool:
        if self._horizon.admits(message.term, self.view.own.term, trio.current_time()):
            return True
        if not self._told_of_terms:
            self._told_of_terms = True
            logger.warning(
                "{} names the election term {}, far beyond {}: what it says is ignored. If it is "
                "one of yours, stop it and remove state.json from its data directory",
                *(message.peer_id, message.term, self.view.own.term),
            )
        return False

    def _merge(self, record: NodeRecord) -> None:
        self._report(self.view.merge(record, trio.current_time()))

    def _report(self, events: list[Event]) -> None:
        for event in events:
            if event.peer_id != self.view.self_id:
                self._log(event)
                if event.change is not Change.UPDATED:
                    self._unsettled()
            self._on_event(event)

    def _log(self, event: Event) -> None:
        member = self.view.get(event.peer_id)
        name = f"{member.record.host} ({event.peer_id})" if member is not None else event.peer_id
        match event.change:
            case Change.UPDATED:
                logger.debug("{} has changed", name)
            case Change.SUSPECT:
                logger.warning("{} is suspect: it has not been heard of, or its link broke", name)
            case Change.GONE:
                logger.warning("{} is gone", name)
            case _:
                logger.info("{} has {}", name, event.change.value)

    def _unsettled(self) -> None:
        self._rhythm.unsettled()
        self._poked.set()

    def _link_up(self, link: Link) -> None:
        self._unsettled()
        if self._nursery is not None:
            self._nursery.start_soon(self._send_hello, link)

    def _link_down(self, link: Link) -> None:
        self._unsettled()
        if self._host.best_link(link.peer_id) is None:
            self._report(self.view.connection_lost(link.peer_id))

    def _link_alive(self, link: Link) -> None:
        self._report(self.view.heard(link.peer_id, trio.current_time()))

    async def _send_hello(self, link: Link) -> None:
        member = self.view.get(link.peer_id)
        known = member.record if member is not None else None
        try:
            with trio.fail_after(_HELLO_TIMEOUT_S):
                # On this link: two nodes with one identity are told apart by nothing else.
                stream = await negotiate(link.connection, HELLO_PROTOCOL)
                try:
                    own = self.view.own
                    await write_message(stream, Hello(own, self._own_claim(), known, time.time()))
                    await stream.close()
                except BaseException:
                    await stream.reset()
                    raise
        except (PeerUnreachable, TransportError, trio.TooSlowError) as error:
            logger.debug("could not greet {}, gossip will: {!r}", link.peer_id, error)

    async def _take_hello(self, stream: ByteStream) -> None:
        peer_id = stream.peer_id.to_base58()
        decoder = msgspec.msgpack.Decoder(Hello)
        try:
            with trio.fail_after(_HELLO_TIMEOUT_S):
                hello = await read_message(stream, FrameReader(decoder, max_message=_MAX_HELLO))
        except trio.TooSlowError:
            raise Truncated(f"no hello within {_HELLO_TIMEOUT_S:g} s") from None
        hello = sane(hello)
        record, claim = hello.record, hello.claim
        if record.peer_id != peer_id or (claim is not None and claim.peer_id != peer_id):
            raise Malformed(f"{peer_id} speaks for another node")
        if record.cluster == self.view.own.cluster:
            if hello.known is not None and not self._is_own(hello.known):
                self._on_known(hello.known)
            self._compare_clocks(record, hello.clock)
            self._take(record)
            if claim is not None:
                self._take(claim)
            return
        logger.warning(
            "{} ({}) is of the cluster {!r}, not of {!r}: disconnecting",
            record.host,
            peer_id,
            record.cluster,
            self.view.own.cluster,
        )
        self._on_stranger(peer_id)
        await self._host.disconnect(peer_id)

    def _is_own(self, record: NodeRecord) -> bool:
        own = self.view.own
        return record.peer_id != own.peer_id or (
            record.incarnation == own.incarnation and record.sequence <= own.sequence
        )

    def _compare_clocks(self, record: NodeRecord, clock: float) -> None:
        """Say it, once per peer, if one of the two clocks is far off. Nothing here relies on it."""
        ahead_s = clock - time.time()
        if (
            clock == 0.0
            or abs(ahead_s) < _CLOCK_TOLERANCE_S
            or record.peer_id in self._wrong_clocks
        ):
            return
        self._wrong_clocks.add(record.peer_id)
        logger.warning(
            "the clock of {} ({}) is {:.0f} minutes {} ours: set the one that is wrong. The "
            "cluster does not mind, but logs and certificates do",
            record.host,
            record.peer_id,
            abs(ahead_s) / 60,
            "ahead of" if ahead_s > 0 else "behind",
        )
