"""Whose bytes go next where several transfers leave over one interface. Pure.

All get the same share of it, however large they are: of those that have something to send, the one
goes next that has been served least (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996).
A transfer that would miss its deadline with that share, but not with all of the link, is at risk;
those go first, the earliest deadline first, with up to `URGENT_SHARE` of what is sent. So neither
does a large transfer hold up a small one, nor urgent ones any other for good.

Bytes are granted in pieces, and few at a time, so that what goes next is decided late. Only who has
room at its receiver is to ask, so what is granted waits for the link alone. A piece that is not
sent for long all the same (a process that is stopped) leaves room for others.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_GRANTED", "STALL_S", "URGENT_SHARE", "FairQueue", "Member"]

URGENT_SHARE: Final = 0.75
MAX_GRANTED: Final = 2 << 20
"""Bytes that are granted at a time and not sent yet: enough for one to be sent while the next is
made ready."""
STALL_S: Final = 0.5
_RATE_SPAN_S: Final = 0.5


class Member:
    """A transfer.

    Args:
        deadline: when it must be over, by the clock that is given to the queue.
        left: bytes that it will still send, about.
    """

    def __init__(self, deadline: float, left: int) -> None:
        self.deadline = deadline
        self.left = left
        self.served = 0.0
        """Its virtual time: what it has sent, and what it missed while it had nothing to send."""
        self.wanted = 0
        """Bytes that it waits to be granted; 0 when it does not wait."""
        self.granted = 0
        """Bytes that it may send, and has not sent."""
        self.granted_at = 0.0


class FairQueue:
    """Grants the members of one link their turns."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._clock = 0.0
        """The virtual time of the last that was served."""
        self._urgent = 0.0
        self._ordinary = 0.0
        self._rate = _Rate()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def bytes_per_s(self) -> float:
        """What the members have sent of late, together; 0 before anything is known."""
        return self._rate.bytes_per_s

    def join(self, member: Member) -> None:
        """Take a member in. It gets its share from now on, and nothing for the time before."""
        member.served = self._clock
        self._members.append(member)

    def leave(self, member: Member) -> None:
        """Let a member go, whatever it waits for."""
        self._members.remove(member)

    def ask(self, member: Member, size: int) -> None:
        """Say that a member wants to send its next bytes; once it has sent the ones before.

        Raises:
            ValueError: no bytes, or it has a turn already.
        """
        if size <= 0 or member.wanted or member.granted:
            raise ValueError(f"{size} bytes asked for beside {member.wanted + member.granted}")
        member.wanted = size
        # Who had nothing to send is not owed the time: else it would have the link for itself now.
        member.served = max(member.served, self._clock)

    def sent(self, member: Member, now: float) -> None:
        """Say that a member has sent what it was granted, or has given it up."""
        size, member.granted = member.granted, 0
        member.left = max(0, member.left - size)
        self._rate.add(size, now, busy=any(each.granted for each in self._members))

    def grant(self, now: float) -> list[Member]:
        """Return who may send now what it has asked for."""
        chosen: list[Member] = []
        while waiting := [each for each in self._members if each.wanted]:
            under_way = [
                each for each in self._members if each.granted and now - each.granted_at < STALL_S
            ]
            member = self._next(waiting, under_way, now)
            room = MAX_GRANTED - sum(each.granted for each in under_way)
            if member is None or (under_way and member.wanted > room):
                break
            self._serve(member, waiting, now)
            chosen.append(member)
        return chosen

    def _next(self, waiting: list[Member], under_way: list[Member], now: float) -> Member | None:
        """Return whose turn it is; None if nobody's as long as one at risk has its own."""
        at_risk = [each for each in waiting if self._at_risk(each, now)]
        others = [each for each in waiting if each not in at_risk]
        if others and not self._urgent_may_go():
            return min(others, key=lambda each: each.served)
        first = min(
            (each for each in (*under_way, *waiting) if self._at_risk(each, now)),
            key=lambda each: each.deadline,
            default=None,
        )
        if first is None:
            return min(waiting, key=lambda each: each.served)
        return first if first in waiting else None

    def _serve(self, member: Member, waiting: list[Member], now: float) -> None:
        # Who is at risk runs ahead, and does not take the others along.
        self._clock = max(self._clock, min(each.served for each in waiting))
        risks = [each for each in self._members if self._at_risk(each, now)]
        if risks and len(risks) < len(self._members):
            self._count(member.wanted, urgent=member in risks)
        if not any(each.granted for each in self._members):
            self._rate.begin(now)
        member.served += member.wanted
        member.granted, member.wanted, member.granted_at = member.wanted, 0, now

    def _at_risk(self, member: Member, now: float) -> bool:
        rate, left_s = self.bytes_per_s, member.deadline - now
        if rate <= 0 or left_s <= 0:
            return False
        alone_s = member.left / rate
        return alone_s <= left_s < alone_s * len(self._members)

    def _urgent_may_go(self) -> bool:
        return self._urgent * (1 - URGENT_SHARE) <= self._ordinary * URGENT_SHARE

    def _count(self, size: int, *, urgent: bool) -> None:
        if urgent:
            self._urgent += size
        else:
            self._ordinary += size
        # What was long ago says nothing of who is to go now.
        if self._urgent + self._ordinary > 16 * MAX_GRANTED:
            self._urgent /= 2
            self._ordinary /= 2


class _Rate:
    """Bytes per second of the time in which something is on its way, of the last second or so."""

    def __init__(self) -> None:
        self.bytes_per_s = 0.0
        self._busy_since: float | None = None
        self._busy_s = 0.0
        self._bytes = 0

    def begin(self, now: float) -> None:
        self._busy_since = now

    def add(self, size: int, now: float, *, busy: bool) -> None:
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
        self._busy_since = now if busy else None
        self._bytes += size
        if self._busy_s < _RATE_SPAN_S:
            return
        measured = self._bytes / self._busy_s
        self.bytes_per_s = (self.bytes_per_s + measured) / 2 if self.bytes_per_s else measured
        self._busy_s, self._bytes = 0.0, 0
