"""Records, goodbyes and election claims over gossipsub, one topic per cluster.

Known of py-libp2p's gossipsub and held off here and in `node.membership.pubsub`: its heartbeat
comes every 120 s by default and it lets 10 messages a second through; message ids start from the
clock in seconds and grow by one per message, so a node that restarts would repeat ids that its
peers have seen and drop; what it notes of each message, for scores that nobody uses, is never
removed. Messages published before the mesh has formed may be lost: everything sent here is sent
again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from libp2p.abc import IHost, ISubscriptionAPI
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.tools.anyio_service import background_trio_service

from node.membership.pubsub import BoundedPubsub
from node.transport.conduct import Conduct
from protocols.errors import Malformed
from protocols.gossip import GossipMessage, NodeRecord
from protocols.sanity import cleaned_text, sane

__all__ = ["Gossip", "decode_message"]

_MAX_BYTES: Final = 64 << 10

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[GossipMessage] = msgspec.msgpack.Decoder(GossipMessage)


def decode_message(data: bytes, origin: str, cluster: str) -> GossipMessage:
    """Read a message and check that its signed `origin` may say it.

    Raises:
        Malformed: the bytes are no message, it speaks for another node or for another cluster, or
            it says what cannot be.
    """
    if len(data) > _MAX_BYTES:
        raise Malformed(f"{len(data)} bytes of gossip, over {_MAX_BYTES}")
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a gossip message: {error}") from error
    if message.peer_id != origin:
        raise Malformed(f"it speaks for {cleaned_text(message.peer_id[:64])}")
    if isinstance(message, NodeRecord) and message.cluster != cluster:
        raise Malformed(f"it is of the cluster {message.cluster[:64]!r}")
    return sane(message)


class Gossip:
    """Publishes to a cluster's topic and yields what others publish there.

    Args:
        host: the libp2p host; the service must be `running` before it connects to anyone.
        cluster: the cluster's name.
        conduct: told whose messages are wrong.
    """

    def __init__(self, host: IHost, cluster: str, conduct: Conduct) -> None:
        self._cluster = cluster
        self._topic = f"baton/1/{cluster}"
        self._own_id = host.get_id()
        self._router = GossipSub(
            protocols=[PROTOCOL_ID_V11],
            degree=6,
            degree_low=4,
            degree_high=12,
            heartbeat_interval=1,
            spam_protection_enabled=False,
            adaptive_gossip_enabled=False,
            eclipse_protection_enabled=False,
        )
        self._pubsub = BoundedPubsub(host, self._router, self._topic, self._check, conduct)
        self._pubsub.counter = time.time_ns()

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
        self._router.equivocation_detection.clear()
        self._pubsub.forget_strangers()

    async def _messages(self, subscription: ISubscriptionAPI) -> AsyncIterator[GossipMessage]:
        async for message in subscription:
            origin = ID(message.from_id)
            if origin != self._own_id:
                yield decode_message(message.data, origin.to_base58(), self._cluster)

    def _check(self, origin: ID, data: bytes) -> None:
        decode_message(data, origin.to_base58(), self._cluster)
