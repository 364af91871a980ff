"""Elects the master. A state machine without I/O or clock.

There are no votes, since of two machines either must go on without the other. A candidate claims
the next term by its heartbeat; terms are unique to their claimant (`node/election/terms.py`), so
there are never two masters of one term. Every node follows the highest claim that it has heard, and
never one below a term that it knows of; a master that hears a higher one steps down.

While a network is split, each side has a master, of terms of its own: what a master decides is
fenced by its term. When the sides meet, the master with more followers stays, by claiming a term
beyond the other's, and its followers wait for that as long as they hear it. The followers that such
answers tell of are more each time, so they end.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import msgspec

from node.election.terms import MAX_TERM, ballot, next_term
from protocols.gossip import Heartbeat

__all__ = [
    "GREETING_S",
    "HEARTBEAT_S",
    "LOST_S",
    "PATIENCE_S",
    "STAGGER_S",
    "Effect",
    "ElectionMachine",
    "MasterChanged",
    "PersistTerm",
    "Place",
    "Send",
]

HEARTBEAT_S: Final = 1.0
PATIENCE_S: Final = 3.0
"""Silence of the master after which the first in rank claims the next term."""
LOST_S: Final = 1.5
"""The same once the connection to the master has ended. Its claim comes by another way meanwhile,
or with a new connection's greeting, if it is still there."""
GREETING_S: Final = 0.75
"""The same for a node that has just started, from when it first met another: records say whether
their nodes follow a master."""
STAGGER_S: Final = 0.7
"""How much longer each further rank waits, so that the first is heard before the second tries."""
_MAX_STAGGERED_RANK: Final = 6
_LOYAL_S: Final = 1.5
"""How long after its last heartbeat a master is worth waiting for when a lesser one claims more."""
_ANSWER_S: Final = 1.25
"""How long a master leaves a higher term that it knows of to whoever may have claimed it."""


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


class Place(NamedTuple):
    """Where a node stands among those that it sees."""

    rank: int = 0
    """How many that are alive come before it."""
    followers: int = 1
    """How many follow it, itself included."""


class _Claim(NamedTuple):
    peer_id: str
    term: int


class ElectionMachine:
    """One node's part in the election.

    Each method returns what to do, in order. Times are seconds by one monotonic clock.

    Args:
        peer_id: this node.
        incarnation: this start of it.
        term: the highest term that it has persisted.
        now: the time of its start.
    """

    def __init__(self, peer_id: str, incarnation: int, term: int, now: float) -> None:
        self._peer_id = peer_id
        self._incarnation = incarnation
        self._salt = 0
        self._ballot = ballot(peer_id, incarnation)
        self._term = term
        self._claim: _Claim | None = None
        self._followers = 0
        self._starting = True
        self._met_at: float | None = None
        self._heard_at = now
        self._ticked_at = now
        self._sent_at = now
        self._outdone_at = now

    @property
    def term(self) -> int:
        """The highest term that this node knows of."""
        return self._term

    @property
    def master(self) -> str | None:
        """The peer id of the master, as far as this node knows."""
        return self._claim.peer_id if self._claim is not None else None

    @property
    def master_term(self) -> int | None:
        """The term that the master claimed; None without a master."""
        return self._claim.term if self._claim is not None else None

    @property
    def is_master(self) -> bool:
        return self.master == self._peer_id

    def heard(self, heartbeat: Heartbeat, place: Place, now: float) -> list[Effect]:
        """Take another node's claim in."""
        claim, current = _Claim(heartbeat.peer_id, heartbeat.term), self._claim
        if claim.peer_id == self._peer_id or not 0 < claim.term <= MAX_TERM:
            return []
        if claim == current:
            self._followers, self._heard_at = heartbeat.followers, now
            return []
        if claim.term < self._term or (current is not None and not _outranks(claim, current)):
            return []
        if self.is_master and place.followers > heartbeat.followers:
            return self._campaign(place, now, beyond=claim.term)
        if self._is_loyal(heartbeat, now):
            return self.heard_term(claim.term, claim.peer_id, now)
        return self._follow(claim, heartbeat.followers, now)

    def joined(self, peer_id: str, incarnation: int, now: float) -> None:
        """Note that a node is met, for the first time or after its restart.

        If its ballot is this one's, one of the two takes another: the one with the higher peer id,
        and any that has had to before. What either claimed earlier is no danger: its record tells
        the other of that term, so the next claim is of a later round.
        """
        if self._met_at is None:
            self._met_at = now
        if ballot(peer_id, incarnation) == self._ballot and (self._salt or peer_id < self._peer_id):
            self._salt += 1
            self._ballot = ballot(self._peer_id, self._incarnation, self._salt)

    def heard_term(self, term: int, master: str, now: float) -> list[Effect]:
        """Take note of a term that some node knows of; a master later claims one beyond it.

        A node that was master of a higher term, alone or before a restart, so does not depose the
        master of the many when it comes back.

        Args:
            term: the term.
            master: whom that node follows; empty for nobody.
            now: the time.
        """
        if self._starting and master:
            # There is a master: it will be heard of.
            self._starting, self._heard_at = False, now
        if not self._term < term <= MAX_TERM:
            return []
        if self._claim is not None and self._claim.term == self._term:
            self._outdone_at = now
        return self._adopt(term)

    def lost(self, peer_id: str, now: float) -> None:
        """Note that the last connection to a node ended; if it was the master, wait less for it."""
        if peer_id == self.master and not self.is_master:
            self._heard_at = min(self._heard_at, now - PATIENCE_S + LOST_S)

    def gone(self, peer_id: str, place: Place, now: float) -> list[Effect]:
        """Note that a node is gone; if it was the master, the first in rank need not wait."""
        if peer_id != self.master or self.is_master:
            return []
        self._claim = None
        self._heard_at = now - PATIENCE_S
        return [MasterChanged(None, self._term), *self.tick(place, now)]

    def tick(self, place: Place, now: float) -> list[Effect]:
        """Let time pass; to be called several times a second."""
        held_up = self._held_up(now)
        if self._claim is not None and self.is_master:
            if held_up >= PATIENCE_S:
                # The others have lost patience: leave it to them to say who is master now.
                self._claim, self._heard_at = None, now
                return [MasterChanged(None, self._term)]
            if self._claim.term < self._term and now - self._outdone_at >= _ANSWER_S:
                return self._campaign(place, now)
            return self._beat(self._claim, place, now) if now >= self._sent_at + HEARTBEAT_S else []
        return self._campaign(place, now) if now >= self._deadline(place.rank) else []

    def _is_loyal(self, heartbeat: Heartbeat, now: float) -> bool:
        """Whether the master has more followers than a claimant, and can be heard."""
        return (
            self._claim is not None
            and not self.is_master
            and heartbeat.followers < self._followers
            and now - self._heard_at < _LOYAL_S
        )

    def _held_up(self, now: float) -> float:
        """Return for how long this process did not run: that silence was not the master's."""
        held_up = max(0.0, now - self._ticked_at - HEARTBEAT_S)
        self._ticked_at = now
        self._heard_at += held_up
        if self._met_at is not None:
            self._met_at += held_up
        return held_up

    def _deadline(self, rank: int) -> float:
        """Return when to claim if nothing is heard."""
        deadline = self._heard_at + PATIENCE_S
        if self._starting and self._met_at is not None:
            deadline = min(deadline, self._met_at + GREETING_S)
        return deadline + STAGGER_S * min(rank, _MAX_STAGGERED_RANK)

    def _campaign(self, place: Place, now: float, beyond: int = 0) -> list[Effect]:
        term = next_term(max(self._term, beyond), self._ballot)
        if term > MAX_TERM:
            return []
        claim = _Claim(self._peer_id, term)
        return [*self._follow(claim, place.followers, now), *self._beat(claim, place, now)]

    def _follow(self, claim: _Claim, followers: int, now: float) -> list[Effect]:
        self._claim, self._followers = claim, followers
        self._heard_at, self._starting = now, False
        return [*self._adopt(claim.term), MasterChanged(claim.peer_id, claim.term)]

    def _beat(self, claim: _Claim, place: Place, now: float) -> list[Effect]:
        self._sent_at = now
        return [Send(Heartbeat(claim.peer_id, claim.term, place.followers))]

    def _adopt(self, term: int) -> list[Effect]:
        if term <= self._term:
            return []
        self._term = term
        return [PersistTerm(term)]


def _outranks(claim: _Claim, other: _Claim) -> bool:
    """Compare by term; should two have claimed one before they met, the lower peer id keeps it."""
    return claim.term > other.term or (claim.term == other.term and claim.peer_id < other.peer_id)
