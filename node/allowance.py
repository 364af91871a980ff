"""A token bucket. No I/O and no clock of its own."""

from __future__ import annotations

__all__ = ["Allowance"]


class Allowance:
    """So much at once, and so much a second.

    Args:
        per_s: what comes back in a second.
        burst: what there is at most, and at first.
        now: seconds by a monotonic clock, as in every call.
    """

    __slots__ = ("_burst", "_left", "_per_s", "_updated_at")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._updated_at = now

    def take(self, cost: float, now: float) -> bool:
        """Take `cost` if there is as much; return whether there was."""
        self._refill(now)
        if cost > self._left:
            return False
        self._left -= cost
        return True

    def overdraw(self, cost: float, now: float) -> float:
        """Take `cost` in any case; return the seconds until the account is even again."""
        self._refill(now)
        self._left -= cost
        return max(0.0, -self._left / self._per_s)

    def _refill(self, now: float) -> None:
        self._left = min(self._burst, self._left + (now - self._updated_at) * self._per_s)
        self._updated_at = now
