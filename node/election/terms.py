"""Terms that no two nodes claim: a round, and below it the claimant's ballot.

As with the ballot numbers of Paxos (Lamport, "The Part-Time Parliament", 1998), a term says by
itself who may claim it. A term of an earlier version, a small number, is one of round 0.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

__all__ = ["MAX_TERM", "ballot", "next_term", "round_of"]

_BALLOT_BITS: Final = 31
MAX_TERM: Final = (1 << 53) - 1
"""What JSON readers keep exact. One election a second takes 48 days to get there."""


def ballot(peer_id: str, incarnation: int, salt: int = 0) -> int:
    """Return the 31 bits that one start of a node claims terms with.

    They differ between starts, so that a node which lost its state repeats no term either. Two
    nodes share them once in two thousand million pairs; `ElectionMachine.joined` says what then.

    Args:
        peer_id: the node.
        incarnation: its start.
        salt: grows each time the node has met another with the same bits.
    """
    digest = blake2b(f"{peer_id} {incarnation} {salt}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> (32 - _BALLOT_BITS)


def next_term(term: int, own_ballot: int) -> int:
    """Return the term of the round after that of `term`; it may exceed `MAX_TERM`."""
    return (round_of(term) + 1) << _BALLOT_BITS | own_ballot


def round_of(term: int) -> int:
    """Return the part of a term that counts elections, which is what people are shown."""
    return term >> _BALLOT_BITS
