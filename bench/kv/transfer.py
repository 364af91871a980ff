"""What the ways to move a cache have in common."""

from __future__ import annotations

import time
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from protocols.kv_prefill.messages import Codec

__all__ = ["CASES", "Arrivals", "Case", "Fetch", "Fetched"]

Case: TypeAlias = Literal["baton", "baton_planes", "stock_libp2p", "tls", "plain_tcp"]

CASES: Final[dict[Case, Codec]] = {
    "baton": "raw",
    "baton_planes": "planes",
    "stock_libp2p": "raw",
    "tls": "raw",
    "plain_tcp": "raw",
}
"""The codec of each."""


class Fetched(msgspec.Struct):
    """A cache that has been moved. Times are of the machine's monotonic clock."""

    began: float
    """When it was asked for."""
    arrivals: list[tuple[float, int]]
    """When each chunk had been checked, and how many raw bytes it has."""
    sent_bytes: int
    """After the codec."""

    @property
    def raw_bytes(self) -> int:
        return sum(size for _, size in self.arrivals)

    @property
    def seconds(self) -> float:
        """From asking to the last chunk."""
        return self.arrivals[-1][0] - self.began

    @property
    def bytes_per_s(self) -> float:
        """Raw bytes, whatever the codec made of them."""
        return self.raw_bytes / self.seconds


class Arrivals:
    """Notes chunks as they come."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._each: list[tuple[float, int]] = []

    def add(self, raw_size: int) -> None:
        """Note a chunk that has come whole."""
        self._each.append((time.monotonic(), raw_size))

    def fetched(self, sent_bytes: int) -> Fetched:
        """Return everything that has come."""
        return Fetched(self.began, self._each, sent_bytes)


class Fetch(Protocol):
    """Has a cache sent from the server that it is connected to."""

    async def __call__(self, tokens: int, codec: Codec) -> Fetched:
        """Return when the cache of so many tokens is here.

        Raises:
            BenchError: it did not come whole.
        """
        ...
