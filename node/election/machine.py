"""Elects the master. A state machine without I/O or clock.

There are no votes: a candidate claims the next term by its heartbeat, and claims are totally
ordered by (term, seniority, peer id), where the seniority is fixed when the term is claimed. Every
node follows the highest claim that it has heard; a master that hears a higher one steps down. Two
nodes may so believe themselves master of one term for as long as they cannot hear each other, or
for one heartbeat; the master only decides, and what it decides is fenced by its claim.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import msgspec

from protocols.gossip import Heartbeat

__all__ = [
    "HEARTBEAT_S",
    "PATIENCE_S",
    "STAGGER_S",
    "Effect",
    "ElectionMachine",
    "MasterChanged",
    "PersistTerm",
    "Send",
]

HEARTBEAT_S: Final = 1.0
PATIENCE_S: Final = 3.0
"""Silence of the master after which the first in rank claims the next term."""
STAGGER_S: Final = 0.7
"""How much longer each further rank waits, so that the first is heard before the second tries."""
_MAX_STAGGERED_RANK: Final = 6


class PersistTerm(msgspec.Struct, frozen=True):
    """Write the term down before doing what comes after."""

    term: int


class Send(msgspec.Struct, frozen=True):
    """Tell every node."""

    heartbeat: Heartbeat


class MasterChanged(msgspec.Struct, frozen=True):
    """There is another master, or (None) none for now."""

    peer_id: str | None
    term: int


Effect: TypeAlias = PersistTerm | Send | MasterChanged


class _Claim(NamedTuple):
    """A node's claim to be master; the highest wins."""

    term: int
    seniority: int
    peer_id: str


class ElectionMachine:
    """One node's part in the election.

    Each method returns what to do, in order. Times are seconds by one monotonic clock.

    Args:
        peer_id: this node.
        term: the highest term that it has persisted.
        now: the time of its start.
    """

    def __init__(self, peer_id: str, term: int, now: float) -> None:
        self._peer_id = peer_id
        self._term = term
        self._started = now
        self._claim: _Claim | None = None
        self._heard_at = now
        self._ticked_at = now
        self._sent_at = now

    @property
    def term(self) -> int:
        """The highest term that this node knows of."""
        return self._term

    @property
    def master(self) -> str | None:
        """The peer id of the master, as far as this node knows."""
        return self._claim.peer_id if self._claim is not None else None

    @property
    def is_master(self) -> bool:
        return self.master == self._peer_id

    def heard(self, heartbeat: Heartbeat, now: float) -> list[Effect]:
        """Take another node's claim in."""
        claim = _Claim(heartbeat.term, heartbeat.seniority, heartbeat.peer_id)
        if claim.peer_id == self._peer_id or claim.term < self._term:
            return []
        if self._claim is not None and claim < self._claim:
            return []
        effects = self._adopt(claim.term)
        if self._claim != claim:
            changed = self.master != claim.peer_id or self._claim is None
            self._claim = claim
            if changed or effects:
                effects.append(MasterChanged(claim.peer_id, claim.term))
        self._heard_at = now
        return effects

    def heard_term(self, term: int, now: float) -> list[Effect]:
        """Take note of a term that some node knows of; a master then claims one beyond it.

        A node that was master of a higher term, alone or before a restart, so does not depose the
        master of the many when it comes back.
        """
        if term <= self._term:
            return []
        if self.is_master:
            return self._campaign(term + 1, now)
        return self._adopt(term)

    def gone(self, peer_id: str, rank: int, now: float) -> list[Effect]:
        """Note that a node is gone; if it was the master, the first in rank need not wait."""
        if peer_id != self.master or self.is_master:
            return []
        self._claim = None
        self._heard_at = now - PATIENCE_S
        return [MasterChanged(None, self._term), *self.tick(rank, now)]

    def tick(self, rank: int, now: float) -> list[Effect]:
        """Let time pass; to be called several times a second.

        Args:
            rank: how many nodes that are alive come before this one.
            now: the time.
        """
        # When this process itself was held up, the silence was not the master's.
        held_up = now - self._ticked_at - HEARTBEAT_S
        if held_up > 0:
            self._heard_at += held_up
        self._ticked_at = now
        if self._claim is not None and self._claim.peer_id == self._peer_id:
            return self._beat(self._claim, now) if now - self._sent_at >= HEARTBEAT_S else []
        if now - self._heard_at < PATIENCE_S + STAGGER_S * min(rank, _MAX_STAGGERED_RANK):
            return []
        return self._campaign(self._term + 1, now)

    def _campaign(self, term: int, now: float) -> list[Effect]:
        effects = self._adopt(term)
        self._claim = _Claim(term, int((now - self._started) * 1000), self._peer_id)
        return [*effects, MasterChanged(self._peer_id, term), *self._beat(self._claim, now)]

    def _beat(self, claim: _Claim, now: float) -> list[Effect]:
        self._sent_at = now
        return [Send(Heartbeat(claim.peer_id, claim.term, claim.seniority))]

    def _adopt(self, term: int) -> list[Effect]:
        if term <= self._term:
            return []
        self._term = term
        return [PersistTerm(term)]
