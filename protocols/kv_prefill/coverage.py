"""What of a cache has arrived, and how far it can be used.

A cache of `[start, p)` is usable when every layer has what it needs for it
(`protocols.cache.LayerLayout`): attention and latent layers all tokens, window layers the last
`window` of them, state layers the state at `p` itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Protocol

from protocols.cache import CacheLayout, StateLayer, WindowLayer
from protocols.kv_prefill.checks import check_chunk, check_within
from protocols.kv_prefill.messages import Chunk
from protocols.kv_prefill.ranges import Range, Ranges

__all__ = ["Coverage"]


class Coverage:
    """Counts the chunks of a cache of `[start, end)`; repeated ones, in any order, do no harm.

    A layer whose arrays hold no bytes needs nothing.

    Raises:
        ValueError: the range is empty.
    """

    def __init__(self, layout: CacheLayout, start: int, end: int) -> None:
        if not 0 <= start < end:
            raise ValueError(f"nothing to cover in [{start}, {end})")
        self.start = start
        self.end = end
        self._layout = layout
        self._layers: list[_LayerCoverage] = [
            self._layer_coverage(index) for index in range(len(layout.layers))
        ]

    def add(self, chunk: Chunk) -> None:
        """Count a chunk in.

        Raises:
            Malformed: it is not one of this layout or lies outside the range.
            LimitExceeded: one of its sizes is over what it can be.
        """
        check_chunk(chunk, self._layout)
        check_within(chunk, self.start, self.end)
        self._layers[chunk.layer].add(chunk.start, chunk.end)

    def remove(self, layer: int, start: int, end: int) -> None:
        """Count a chunk out that turned out to be unusable; its positions are missing again.

        Raises:
            IndexError: there is no such layer.
        """
        self._layers[layer].remove(start, end)

    @property
    def complete(self) -> bool:
        """Whether all of `[start, end)` is usable."""
        return self.usable_end == self.end

    @property
    def usable_end(self) -> int:
        """The largest position p for which `[start, p)` is usable; `start` when there is none."""
        position, lowered = self.end, True
        while lowered:
            lowered = False
            for layer in self._layers:
                usable = layer.usable_end(position)
                if usable < position:
                    position, lowered = usable, True
        return position

    @property
    def covered_tokens(self) -> int:
        """Tokens that need not be computed again if nothing more arrives."""
        return self.usable_end - self.start

    def missing(self, layer: int) -> list[Range]:
        """Return the ranges of a layer that must still arrive for `[start, end)` to be usable.

        Raises:
            IndexError: there is no such layer.
        """
        return self._layers[layer].missing()

    def describe_missing(self) -> str:
        """Say what is missing, for a person to read."""
        lacking = [
            (index, gaps) for index, layer in enumerate(self._layers) if (gaps := layer.missing())
        ]
        if not lacking:
            return "nothing is missing"
        index, gaps = lacking[0]
        ranges = ", ".join(f"[{low}, {high})" for low, high in gaps[:3])
        more = ", ..." if len(gaps) > 3 else ""
        others = f", and {len(lacking) - 1} more of {len(self._layers)} layers lack some"
        return f"layer {index} lacks {ranges}{more}{others if len(lacking) > 1 else ''}"

    def _layer_coverage(self, index: int) -> _LayerCoverage:
        layer = self._layout.layers[index]
        if self._layout.nbytes(index, 1) == 0:
            return _Nothing()
        if isinstance(layer, StateLayer):
            return _States(self.start, self.end)
        window = layer.window if isinstance(layer, WindowLayer) else self.end - self.start
        return _Tokens(self.start, self.end, window)


class _LayerCoverage(Protocol):
    def add(self, start: int, end: int) -> None: ...

    def remove(self, start: int, end: int) -> None: ...

    def usable_end(self, limit: int) -> int:
        """Return the largest usable position up to `limit`."""
        ...

    def missing(self) -> list[Range]: ...


class _Tokens:
    """Of a layer with a cache per token, of which the last `window` are needed."""

    def __init__(self, start: int, end: int, window: int) -> None:
        self._start, self._end, self._window = start, end, window
        self._arrived = Ranges()

    def add(self, start: int, end: int) -> None:
        self._arrived.add(start, end)

    def remove(self, start: int, end: int) -> None:
        self._arrived.remove(start, end)

    def usable_end(self, limit: int) -> int:
        for low, high in self._arrived.before(limit):
            if low == self._start or high - low >= self._window:
                return high
        return self._start

    def missing(self) -> list[Range]:
        return self._arrived.gaps(max(self._start, self._end - self._window), self._end)


class _States:
    """Of a layer with a state, which is usable at the very positions that it was sent for."""

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end
        self._positions: list[int] = []

    def add(self, start: int, end: int) -> None:
        index = bisect_left(self._positions, end)
        if self._positions[index : index + 1] != [end]:
            self._positions.insert(index, end)

    def remove(self, start: int, end: int) -> None:
        index = bisect_left(self._positions, end)
        if self._positions[index : index + 1] == [end]:
            del self._positions[index]

    def usable_end(self, limit: int) -> int:
        index = bisect_right(self._positions, limit)
        return self._positions[index - 1] if index else self._start

    def missing(self) -> list[Range]:
        return [] if self._end in self._positions[-1:] else [(self._end - 1, self._end)]


class _Nothing:
    """Of a layer that keeps nothing."""

    def add(self, start: int, end: int) -> None: ...

    def remove(self, start: int, end: int) -> None: ...

    def usable_end(self, limit: int) -> int:
        return limit

    def missing(self) -> list[Range]:
        return []
