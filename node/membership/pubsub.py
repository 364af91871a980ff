"""py-libp2p's pubsub, with its own way to take in what neighbours send.

There, a malformed message raises in a task of the service and ends it, a message of 256 KiB can
start thousands of tasks, and whoever sends too much is only told to the log. Here what a neighbour
sends is read, checked and forwarded in one task, message by message, at a bounded rate; so a
flood waits in the neighbour's own connection.

Whose fault a message is: a node forwards only what it has checked, so what cannot be read or is not
signed by its origin is the neighbour's own doing. What is well signed and still wrong is its
origin's, through whomever it comes; the neighbour may be of a version that did not know better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from typing import Final, TypeAlias

import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IHost, INetStream
from libp2p.exceptions import ParseError
from libp2p.io.exceptions import IOException, MessageTooLarge
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import signature_validator
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from loguru import logger

from node.allowance import Allowance
from node.membership.neighbours import NeighbourPubsub
from node.transport.conduct import Conduct, Offence
from protocols.errors import Malformed

__all__ = ["MAX_RPC_BYTES", "BoundedPubsub", "Check"]

Check: TypeAlias = Callable[[ID, bytes], None]
"""Raises `Malformed` if an origin's message is wrong."""

MAX_RPC_BYTES: Final = 256 << 10
MESSAGES_PER_S: Final = 500.0
"""Of one neighbour, what it forwards for others included: of 400 nodes, each of which sends one a
second."""
BURST: Final = 1000.0
_BYTES_PER_MESSAGE: Final = 16 << 10
"""What counts as one more message."""
_MAX_SUBSCRIPTIONS: Final = 16
"""In one message; there is one topic to subscribe to."""
_MAX_STREAMS: Final = 8
"""Of one neighbour: one for each connection, and one that is about to end."""


class BoundedPubsub(NeighbourPubsub):
    """Pubsub on one topic.

    Args:
        host: the libp2p host.
        router: decides whom to forward to.
        topic: the one topic there is.
        check: applied to each new message, before it is delivered or forwarded.
        conduct: told who sends what is wrong.
    """

    def __init__(
        self, host: IHost, router: GossipSub, topic: str, check: Check, conduct: Conduct
    ) -> None:
        allowed: Set[str] = {topic}
        super().__init__(
            host,
            router,
            max_inbound_rpc_size=MAX_RPC_BYTES,
            max_subscriptions_per_rpc=_MAX_SUBSCRIPTIONS,
            allowed_topics=allowed,
        )
        self._topic = topic
        self._check = check
        self._conduct = conduct
        self._streams: Counter[ID] = Counter()
        self._allowances: dict[ID, Allowance] = {}

    async def stream_handler(self, stream: INetStream) -> None:
        """Take in what a neighbour sends on a stream, until it ends."""
        peer = stream.muxed_conn.peer_id
        if self._streams[peer] >= _MAX_STREAMS:
            self._conduct.report(peer, Offence.FLOOD, "it opens many streams for gossip")
            await stream.reset()
            return
        self._streams[peer] += 1
        if peer not in self._allowances:
            self._allowances[peer] = Allowance(MESSAGES_PER_S, BURST, trio.current_time())
        try:
            await self.continuously_read_stream(stream)
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer], self._allowances[peer]

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """Read a neighbour's messages one after another, until it ends or is wrong."""
        peer = stream.muxed_conn.peer_id
        try:
            while self.manager.is_running:
                data = await read_varint_prefixed_bytes_limited(stream, MAX_RPC_BYTES)
                rpc = rpc_pb2.RPC()
                rpc.ParseFromString(data)
                await self._hold_up(peer, len(rpc.publish), len(data))
                await self._take_rpc(peer, rpc)
            return
        except (ParseError, DecodeError, MessageTooLarge, Malformed) as error:
            self._conduct.report(peer, Offence.MALFORMED, f"gossip: {error}")
        except IOException as error:
            logger.debug("a gossip stream of {} has ended: {!r}", peer, error)
        except Exception as error:  # noqa: BLE001 (the router trusts what a control message says)
            self._conduct.report(
                peer, Offence.MALFORMED, f"gossip that cannot be handled: {error!r}"
            )
        await stream.reset()
        self._handle_dead_peer(peer)

    async def _take_rpc(self, peer: ID, rpc: rpc_pb2.RPC) -> None:
        for message in rpc.publish:
            await self.push_msg(peer, message)
        if len(rpc.subscriptions) > self.max_subscriptions_per_rpc:
            raise Malformed(f"{len(rpc.subscriptions)} subscriptions at once")
        for subscription in rpc.subscriptions:
            self.handle_subscription(peer, subscription)
        if rpc.HasField("control"):
            # Where peers are is told by their records, not by what pubsub carries beside it.
            rpc.ClearField("senderRecord")
            await self.router.handle_rpc(rpc, peer)

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Deliver and forward a message, if it is new and right."""
        if self._is_msg_seen(msg):
            return
        if msg_forwarder != self.my_id and not self._accepts(msg_forwarder, msg):
            return
        self._mark_msg_seen(msg)
        self.notify_subscriptions(msg)
        await self.router.publish(msg_forwarder, msg)

    def _accepts(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        origin = ID(message.from_id)
        if origin == self.my_id or self._conduct.refuses(origin):
            # Of our own earlier self, or of one whom we do not listen to: that others do is no
            # fault of theirs.
            return False
        if not _is_signed(message):
            raise Malformed("a message that is not signed by its origin")
        try:
            self._check_signed(origin, message)
        except Malformed as error:
            self._conduct.report(origin, Offence.MALFORMED, f"gossip: {error}")
            # Seen, so that no other neighbour's copy of it counts again.
            self._mark_msg_seen(message)
            return False
        return True

    def _check_signed(self, origin: ID, message: rpc_pb2.Message) -> None:
        if list(message.topicIDs) != [self._topic]:
            raise Malformed(f"a message for {len(message.topicIDs)} topics, not for ours alone")
        self._check(origin, message.data)

    async def _hold_up(self, peer: ID, messages: int, size: int) -> None:
        cost = 1 + messages + size / _BYTES_PER_MESSAGE
        delay = self._allowances[peer].overdraw(cost, trio.current_time())
        if delay:
            self._conduct.report(peer, Offence.FLOOD, "it floods the cluster's gossip")
            await trio.sleep(delay)


def _is_signed(message: rpc_pb2.Message) -> bool:
    try:
        return signature_validator(message)
    except Exception as error:  # noqa: BLE001 (a key that cannot be parsed raises anything)
        logger.debug("a key that makes no sense: {!r}", error)
        return False
