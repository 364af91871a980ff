"""Inbound connections whose peer has not yet shown who it is: bounded in number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

__all__ = ["MAX_PER_ADDRESS", "MAX_TOTAL", "HalfOpen"]

MAX_PER_ADDRESS: Final = 16
MAX_TOTAL: Final = 128


class HalfOpen:
    """Makes room for a newcomer by dropping the one that has waited longest.

    A correct peer needs milliseconds to shake hands, one that holds connections open needs all the
    time there is. So newcomers are let in, and of the address with the most connections (the
    newcomer's own, if that has its share) the oldest has to go. Addresses are not the same as
    machines: neither a machine with many nor many machines behind one are shut out.

    Args:
        per_address: connections of one IP address.
        total: connections of all.
    """

    def __init__(self, per_address: int = MAX_PER_ADDRESS, total: int = MAX_TOTAL) -> None:
        self._per_address = per_address
        self._total = total
        self._count = 0
        self._waiting: defaultdict[str, dict[trio.CancelScope, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def entered(self, address: str) -> Iterator[None]:
        """Shake hands inside; the body is cancelled, and this returns, when its time is up."""
        if len(self._waiting.get(address, ())) >= self._per_address:
            self._drop_oldest(address)
        elif self._count >= self._total:
            self._drop_oldest(max(self._waiting, key=lambda each: len(self._waiting[each])))
        scope = trio.CancelScope()
        self._waiting[address][scope] = None
        self._count += 1
        try:
            with scope:
                yield
        finally:
            self._remove(address, scope)

    def _drop_oldest(self, address: str) -> None:
        oldest = next(iter(self._waiting[address]))
        oldest.cancel()
        self._remove(address, oldest)

    def _remove(self, address: str, scope: trio.CancelScope) -> None:
        waiting = self._waiting.get(address, {})
        if scope not in waiting:
            return
        del waiting[scope]
        self._count -= 1
        if not waiting:
            del self._waiting[address]
