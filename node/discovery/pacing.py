"""How often a network that keeps changing is taken up: soon, and not in a storm."""

from __future__ import annotations

from typing import Final

__all__ = ["Pacing"]

_FIRST_GAP_S: Final = 0.5
_LAST_GAP_S: Final = 3.0
_QUIET_S: Final = 30.0


class Pacing:
    """Says how long to wait before the next change is taken up. No I/O and no clock.

    The first change is taken up at once. While more keep coming (an address that flaps, a cable
    that is loose), the gaps grow, so that others are told every few seconds and not at each of
    them; they stay short enough for what has settled to be told within 5 s.
    """

    def __init__(self) -> None:
        self._gap_s = 0.0
        self._taken_at = float("-inf")

    def wait_s(self, now: float) -> float:
        """Return for how many seconds the next change has to wait."""
        return max(0.0, self._taken_at + self._gap_s - now)

    def taken(self, now: float) -> None:
        """Note that a change was taken up."""
        if now - self._taken_at > _QUIET_S:
            self._gap_s = _FIRST_GAP_S
        else:
            self._gap_s = min(2 * self._gap_s, _LAST_GAP_S)
        self._taken_at = now
