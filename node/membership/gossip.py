"""Records, goodbyes and election claims over gossipsub, one topic per cluster.

Known of py-libp2p's gossipsub and held off here: its heartbeat comes every 120 s by default and it
lets 10 messages a second through; message ids start from the clock in seconds and grow by one per
message, so a node that restarts would repeat ids that its peers have seen and drop; a malformed
message raises in a task of the service and ends it; the list of recent deliveries only grows.
Messages published before the mesh has formed may be lost: everything sent here is sent again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio
from libp2p.abc import IHost, ISubscriptionAPI
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service
from loguru import logger

from protocols.errors import Malformed
from protocols.gossip import GossipMessage, NodeRecord

__all__ = ["Gossip", "decode_message"]

_MAX_MESSAGES_PER_S: Final = 200.0
"""Per neighbour, what it forwards for others included."""
_MAX_BYTES: Final = 64 << 10
_COMPLAIN_EVERY_S: Final = 10.0

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[GossipMessage] = msgspec.msgpack.Decoder(GossipMessage)


def decode_message(data: bytes, origin: str, cluster: str) -> GossipMessage:
    """Read a message and check that its signed `origin` may say it.

    Raises:
        Malformed: the bytes are no message, it speaks for another node or for another cluster.
    """
    if len(data) > _MAX_BYTES:
        raise Malformed(f"{len(data)} bytes of gossip, over {_MAX_BYTES}")
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"not a gossip message: {error}") from error
    if message.peer_id != origin:
        raise Malformed(f"it speaks for {message.peer_id}")
    if isinstance(message, NodeRecord) and message.cluster != cluster:
        raise Malformed(f"it is of the cluster {message.cluster!r}")
    return message


class Gossip:
    """Publishes to a cluster's topic and yields what others publish there.

    Args:
        host: the libp2p host; the service must be `running` before it connects to anyone.
        cluster: the cluster's name.
    """

    def __init__(self, host: IHost, cluster: str) -> None:
        self._cluster = cluster
        self._topic = f"baton/1/{cluster}"
        self._own_id = host.get_id()
        self._complained_at = float("-inf")
        self._unreported = 0
        self._router = GossipSub(
            protocols=[PROTOCOL_ID_V11],
            degree=6,
            degree_low=4,
            degree_high=12,
            heartbeat_interval=1,
            max_messages_per_topic_per_second=_MAX_MESSAGES_PER_S,
            adaptive_gossip_enabled=False,
            eclipse_protection_enabled=False,
        )
        self._pubsub = _ContainedPubsub(
            host, self._router, max_inbound_rpc_size=4 * _MAX_BYTES, allowed_topics={self._topic}
        )
        self._pubsub.counter = time.time_ns()
        self._pubsub.set_topic_validator(self._topic, self._validate, is_async_validator=False)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[AsyncIterator[GossipMessage]]:
        """Run the service while open; yields the messages of others."""
        async with (
            background_trio_service(self._pubsub),
            background_trio_service(self._router),
        ):
            await self._pubsub.wait_until_ready()
            subscription = await self._pubsub.subscribe(self._topic)
            yield self._messages(subscription)

    async def publish(self, message: GossipMessage) -> None:
        """Send a message to every node that is connected. Nothing is promised."""
        await self._pubsub.publish(self._topic, _encoder.encode(message))
        self._router.recent_message_deliveries.clear()

    async def _messages(self, subscription: ISubscriptionAPI) -> AsyncIterator[GossipMessage]:
        async for message in subscription:
            origin = ID(message.from_id)
            if origin != self._own_id:
                yield decode_message(message.data, origin.to_base58(), self._cluster)

    def _validate(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        """Say whether a message may be taken in and forwarded. Its signature has been checked."""
        origin = ID(message.from_id).to_base58()
        try:
            decode_message(message.data, origin, self._cluster)
        except Malformed as error:
            self._complain(f"dropped gossip of {origin} through {forwarder.to_base58()}: {error}")
            return False
        return True

    def _complain(self, text: str) -> None:
        now = trio.current_time()
        if now - self._complained_at < _COMPLAIN_EVERY_S:
            self._unreported += 1
            return
        more = f" (and {self._unreported} more since the last report)" if self._unreported else ""
        logger.warning("{}{}", text, more)
        self._complained_at, self._unreported = now, 0


class _ContainedPubsub(Pubsub):
    """Pubsub in which a message that cannot be handled is dropped, and the service goes on."""

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:  # noqa: BLE001 (keys that cannot be parsed raise anything)
            logger.warning("gossip through {} is dropped: {!r}", msg_forwarder.to_base58(), error)
