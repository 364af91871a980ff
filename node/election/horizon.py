"""How far ahead of its own the terms may be that a node takes from others. No I/O and no clock.

Terms are finite and are never taken back, so one member that names the last of them would leave the
cluster without elections for good, on every disk. A term costs, in rounds, what it is ahead of the
node's own; as much as elections can honestly use up comes back every second. To exhaust the terms
so takes 48 days of trying.
"""

from __future__ import annotations

from typing import Final

from node.allowance import Allowance
from node.election.terms import round_of

__all__ = ["ROUNDS_AHEAD", "TermHorizon"]

ROUNDS_AHEAD: Final = 1 << 16
"""What a node that has been alone so far may have to catch up with: years of elections. A node that
took in no term of its cluster's would stay the master of itself."""
_ROUNDS_PER_S: Final = 1.0


class TermHorizon:
    """Says which terms are taken in.

    Args:
        now: seconds by a monotonic clock, as in every call.
    """

    def __init__(self, now: float) -> None:
        self._allowance = Allowance(_ROUNDS_PER_S, ROUNDS_AHEAD, now)
        self._admitted = 0

    def admits(self, term: int, own: int, now: float) -> bool:
        """Say whether a term may be taken in; for a node that knows of none yet, any may.

        Args:
            term: what another node says.
            own: the highest term that this node knows of.
            now: the time.
        """
        # What was admitted a moment ago is still on its way to the disk.
        ahead = round_of(term) - round_of(max(own, self._admitted))
        if own > 0 and ahead > 0 and not self._allowance.take(ahead, now):
            return False
        self._admitted = max(term, self._admitted)
        return True
