"""What peers have done wrong, added up; whoever did too much is kept away for a while. No I/O.

Points decay, so that an error now and then costs nothing however long a node runs. A ban is short
at first, since the likeliest offender is a member with a bug or of another version, and its absence
costs the cluster its machine; it doubles for those who go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LIMIT", "Ban", "OffenceLedger"]

LIMIT: Final = 10.0
_HALF_LIFE_S: Final = 30.0
_FIRST_BAN_S: Final = 60.0
_LONGEST_BAN_S: Final = 960.0
_PAROLE_S: Final = 3600.0
"""Time after a ban in which a further one is longer."""
_CAPACITY: Final = 1024


@dataclass(frozen=True)
class Ban:
    """A peer is kept away from now on.

    Attributes:
        seconds: for how long.
        reason: its last offence.
    """

    seconds: float
    reason: str


@dataclass
class _Account:
    points: float = 0.0
    at: float = 0.0
    banned_until: float = float("-inf")
    bans: int = 0


class OffenceLedger:
    """Keeps an account of each peer that has one. Times are seconds by one monotonic clock.

    Args:
        limit: points that lead to a ban.
        capacity: accounts kept; beyond it those are closed that matter least. New identities cost
            an attacker nothing, and must cost us no memory.
    """

    def __init__(self, limit: float = LIMIT, capacity: int = _CAPACITY) -> None:
        self._limit = limit
        self._capacity = capacity
        self._accounts: dict[str, _Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def add(self, peer_id: str, points: float, reason: str, now: float) -> Ban | None:
        """Take note of an offence; return the ban that it leads to, if it does."""
        account = self._accounts.get(peer_id)
        if account is None:
            self._make_room(now)
            account = self._accounts[peer_id] = _Account(at=now)
        if now < account.banned_until:
            return None
        account.points = self._decayed(account, now) + points
        account.at = now
        if account.points < self._limit:
            return None
        if now - account.banned_until > _PAROLE_S:
            account.bans = 0
        seconds = min(_FIRST_BAN_S * 2**account.bans, _LONGEST_BAN_S)
        account.bans += 1
        account.points, account.banned_until = 0.0, now + seconds
        return Ban(seconds, reason)

    def banned_for(self, peer_id: str, now: float) -> float:
        """Return the seconds for which a peer is still banned, 0 if it is not."""
        account = self._accounts.get(peer_id)
        return max(0.0, account.banned_until - now) if account is not None else 0.0

    def _decayed(self, account: _Account, now: float) -> float:
        return account.points * 0.5 ** ((now - account.at) / _HALF_LIFE_S)

    def _make_room(self, now: float) -> None:
        if len(self._accounts) < self._capacity:
            return
        least = min(
            self._accounts,
            key=lambda each: (
                self._accounts[each].banned_until > now,
                self._decayed(self._accounts[each], now),
            ),
        )
        del self._accounts[least]
