"""Reading exact sizes out of pieces, as whoever owns a socket does."""

from collections.abc import Iterable
from itertools import pairwise

__all__ = ["Pipe", "cut"]


class Pipe:
    """Takes bytes in pieces of any size, and gives them out in pieces of the size asked for."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        for part in parts:
            self._bytes += part

    def take(self, size: int) -> bytes | None:
        """Return the next `size` bytes once there are as many."""
        if not size or len(self._bytes) < size:
            return None
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken


def cut(stream: bytes, at: Iterable[int]) -> list[bytes]:
    """Cut a stream at the given places."""
    places = [0, *sorted(set(at)), len(stream)]
    return [stream[low:high] for low, high in pairwise(places)]
