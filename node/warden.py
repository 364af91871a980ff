"""Keeps peers away that do harm, and for a while those that cannot be talked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio
from libp2p.peer.id import ID
from loguru import logger

from node.offences import OffenceLedger
from node.transport.conduct import Offence

__all__ = ["Warden"]

_OTHER_SECRET_S: Final = 60.0
_MAX_AVOIDED: Final = 256


class Warden:
    """Told of every offence of a peer; disconnects and refuses those that go too far.

    Args:
        disconnect: closes every connection to a peer; must not block.
    """

    def __init__(self, disconnect: Callable[[str], None]) -> None:
        self._disconnect = disconnect
        self._ledger = OffenceLedger()
        self._avoided: dict[str, float] = {}

    def report(self, peer: ID | str, offence: Offence, detail: str) -> None:
        """Take note of an offence, and ban the peer if that was one too many."""
        peer_id = str(peer)
        logger.debug("offence of {}: {}", peer_id, detail)
        ban = self._ledger.add(peer_id, offence.value, detail, trio.current_time())
        if ban is None:
            return
        logger.warning(
            "{} is disconnected, and refused for {:.0f} s: {}. If that node is one of yours, see "
            "whether both run the same version of Baton",
            *(peer_id, ban.seconds, ban.reason),
        )
        self._disconnect(peer_id)

    def refuses(self, peer: ID | str) -> bool:
        """Whether connections with a peer are not wanted now."""
        return self._ledger.banned_for(str(peer), trio.current_time()) > 0

    def other_secret(self, peer_id: str, address: str) -> None:
        """Take note that a peer was dialled that has another secret; it is told of once."""
        if peer_id not in self._avoided:
            logger.warning(
                "{} at {} has another secret than this node, or only one of the two has any. If "
                "both belong together, start both with the same --cluster and --secret-file",
                *(peer_id, address),
            )
        if len(self._avoided) >= _MAX_AVOIDED:
            self._avoided.pop(next(iter(self._avoided)))
        self._avoided[peer_id] = trio.current_time() + _OTHER_SECRET_S

    def avoids(self, peer_id: str) -> bool:
        """Whether dialling a peer is of no use for now."""
        return self.refuses(peer_id) or trio.current_time() < self._avoided.get(peer_id, 0.0)
