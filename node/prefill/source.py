"""A prefill that is going on somewhere, as the events of `protocols.kv_prefill.client`."""

from __future__ import annotations

from typing import Protocol

from protocols.kv_prefill.client import Event
from protocols.kv_prefill.coverage import Coverage

__all__ = ["PrefillSource"]


class PrefillSource(Protocol):
    """Where chunks come from: another node's engine, or another engine of this node."""

    @property
    def coverage(self) -> Coverage:
        """What has arrived."""
        ...

    async def next_event(self) -> Event:
        """Wait for the next event. The last one is `Refused`, `Completed` or `TransferFailed`.

        A chunk's payload is the caller's. Asking for the next event says that the chunk before
        has been dealt with.
        """
        ...
