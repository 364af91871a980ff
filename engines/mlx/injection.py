"""Receives a cache computed elsewhere, straight into the memory that MLX will decode from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import mlx.core as mx

from engines.mlx.caches import PromptCache, allocate, as_caches, numpy_view
from engines.mlx.conversion import writer
from protocols.cache import AttentionLayer, CacheLayout
from protocols.errors import ProtocolError
from protocols.kv_prefill.codec import decode
from protocols.kv_prefill.coverage import Coverage
from protocols.kv_prefill.messages import CHECKSUM_SIZE, Chunk
from protocols.kv_prefill.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Injection"]

_ROOM_AFTER: Final = 64
"""Tokens of the answer, at least, before the cache must grow."""


class Injection:
    """Room for a cache of `[0, end)`, filled chunk by chunk.

    Each chunk is decoded, checked, converted to the dtype that the model computes in and written
    in its final place as it arrives, so that nothing is left to do after the last one.

    Args:
        layout: of the chunks, with the sender's dtype.
        layers: `layout.layers`, which all are attention.
        end: tokens to make room for.
        dtype: what the model computes in.

    Raises:
        EngineError: the layout's dtype cannot be converted to the model's.
    """

    def __init__(
        self, layout: CacheLayout, layers: Sequence[AttentionLayer], end: int, dtype: mx.Dtype
    ) -> None:
        self.end = end
        self.wire_dtype = layout.dtype
        self._layout = layout
        self._coverage = Coverage(layout, 0, end)
        self._dtype = dtype
        self._write = writer(layout.dtype, dtype)
        self._room = allocate(layers, end + _ROOM_AFTER, dtype)

    def expect(self, layout: CacheLayout) -> None:
        """Take chunks of another dtype from now on; what has been injected stays.

        Raises:
            EngineError: the dtype cannot be converted to the model's.
        """
        self._write = writer(layout.dtype, self._dtype)
        coverage = Coverage(layout, 0, self.end)
        for layer in range(len(layout.layers)):
            held = Ranges()
            held.add(0, self.end)
            for low, high in self._coverage.missing(layer):
                held.remove(low, high)
            for low, high in held.before(self.end):
                size = layout.nbytes(layer, high - low)
                coverage.add(Chunk(layer, low, high, "raw", size, size, bytes(CHECKSUM_SIZE)))
        self._coverage, self._layout, self.wire_dtype = coverage, layout, layout.dtype

    def add(self, chunk: Chunk, payload: memoryview) -> None:
        """Take one chunk in.

        Raises:
            ProtocolError: it cannot be used, and its positions count as missing.
        """
        self._coverage.add(chunk)
        try:
            keys, values = decode(payload, chunk, self._layout)
        except ProtocolError:
            self._coverage.remove(chunk.layer, chunk.start, chunk.end)
            raise
        for source, target in zip((keys, values), self._room[chunk.layer], strict=True):
            place = numpy_view(target)[0, :, chunk.start : chunk.end]
            self._write(source.transpose(1, 0, 2), place)

    def take(self, limit: int) -> tuple[list[PromptCache], int]:
        """Hand over the caches, and the number of tokens in them, `limit` at most.

        The injection must not be used again: MLX writes on in the same memory.
        """
        usable = min(self._coverage.usable_end, limit)
        return as_caches(self._room, usable), usable
