"""Time that passes from event to event."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

__all__ = ["Clock"]


class Clock:
    """Runs what is due, in order; what is due at one time, in the order in which it was set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Have `action` run at a time, or now if that has passed."""
        heapq.heappush(self._due, (max(time, self.now), next(self._order), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have `action` run in so many seconds."""
        self.at(self.now + seconds, action)

    def run_until(self, end: float) -> None:
        """Let time pass."""
        while self._due and self._due[0][0] <= end:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = end
