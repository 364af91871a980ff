"""py-libp2p's pubsub, so that it keeps nothing of a neighbour that has gone.

Two connections that a neighbour and this node open at once make it open two streams to it. It
knows the second alone: the first one's queue and task stay for good, with the connection below.
And what is removed of a neighbour comes back with what is still on its way: scores, subscriptions,
messages that wait for it.
"""

from __future__ import annotations

from collections.abc import Set

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub

__all__ = ["NeighbourPubsub"]


class NeighbourPubsub(Pubsub):
    """Pubsub with one stream to each neighbour, and no trace of former ones.

    Args:
        host: the libp2p host.
        router: decides whom to forward to.
        max_inbound_rpc_size: bytes of the largest frame that is read.
        max_subscriptions_per_rpc: those that one frame may hold.
        allowed_topics: all others are ignored.
    """

    def __init__(
        self,
        host: IHost,
        router: GossipSub,
        *,
        max_inbound_rpc_size: int,
        max_subscriptions_per_rpc: int,
        allowed_topics: Set[str],
    ) -> None:
        super().__init__(
            host,
            router,
            max_inbound_rpc_size=max_inbound_rpc_size,
            max_subscriptions_per_rpc=max_subscriptions_per_rpc,
            allowed_topics=allowed_topics,
        )
        self._gossipsub = router
        self._opening: dict[ID, trio.Lock] = {}

    def forget_strangers(self) -> None:
        """Drop what is kept of peers that are not connected. To be called regularly."""
        tables = [*vars(self._gossipsub).values(), *vars(self._gossipsub.scorer).values()]
        kept = {key for each in tables if isinstance(each, dict) for key in each}
        kept = kept.union(self.peers, *self.peer_topics.values())
        for peer in kept:
            if isinstance(peer, ID) and not self._peer_is_connected(peer):
                self._handle_dead_peer(peer)
                self._gossipsub.remove_peer(peer)

    async def _handle_new_peer(self, peer_id: ID) -> None:
        lock = self._opening.setdefault(peer_id, trio.Lock())
        try:
            async with lock:
                await super()._handle_new_peer(peer_id)
        finally:
            if not lock.locked():
                self._opening.pop(peer_id, None)
