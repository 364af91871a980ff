"""Has a swarm forget the peers that are gone; py-libp2p remembers each that it ever met.

Its peer store keeps their addresses, keys and signed records, and its auto-connector, which is
stopped here, when each was last connected: some 20 kB a peer. Nothing of it is missed: addresses
come from records and mDNS, and a peer's key is in its id.
"""

from __future__ import annotations

from typing import Final

import trio
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID

__all__ = ["forget_absent_peers"]

_EVERY_S: Final = 10.0


async def forget_absent_peers(swarm: Swarm) -> None:
    """Forget every peer that has had no connection for 10 to 20 s, until cancelled.

    At once would be too soon: a handshake notes what it learns of a peer before there is a
    connection, and identify for a while after its end.
    """
    absent: frozenset[ID] = frozenset()
    while True:
        await trio.sleep(_EVERY_S)
        store = swarm.peerstore
        present = {swarm.get_peer_id(), *swarm.connections}
        was_absent, absent = absent, frozenset(store.peer_ids()) - present
        for peer in was_absent & absent:
            store.clear_peerdata(peer)
        # It notes disconnections of peers that the store has lost already, too.
        swarm.auto_connector.clear_all_cooldowns()
