"""A KV cache to be moved: the shape of Llama-3.1-8B's, and numbers that compress as real ones do.

Nothing is computed, so that what is measured is the way of the cache and not an engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from protocols.cache import AttentionLayer, CacheLayout

__all__ = [
    "BYTES_PER_TOKEN",
    "CHUNK_TOKENS",
    "ENCODERS",
    "LAYOUT",
    "MODEL",
    "STEP_TOKENS",
    "CacheData",
    "Piece",
    "pieces",
    "tokens_for",
]

MODEL: Final = "bench-8b"
LAYOUT: Final = CacheLayout(
    dtype="bfloat16", layers=(AttentionLayer(8, 128, 128),) * 32, fingerprint="bench-8b"
)
"""Of Llama-3.1-8B: 32 layers of 8 heads of 128."""
BYTES_PER_TOKEN: Final = LAYOUT.total_nbytes(0, 1)

STEP_TOKENS: Final = 4096
"""Tokens that vLLM on a GPU computes at once: as `GPU_STEP_TOKENS` in `engines.vllm.start`."""
CHUNK_TOKENS: Final = 1024
"""Tokens per chunk at most: as `MAX_TOKENS` in `engines.vllm.handoff`."""

ENCODERS: Final = max(2, min(4, (os.cpu_count() or 2) // 2))
"""Threads that encode: as `ENCODERS` in `engines.chunks`."""

_CHANNEL_SPREAD: Final = 0.4
"""Of the logarithm of the channels' scales. With it, `planes` makes the numbers 1.48 times smaller,
as it makes SmolLM2's cache."""


class Piece(NamedTuple):
    """One layer's tokens `[start, end)`."""

    layer: int
    start: int
    end: int


def tokens_for(nbytes: int) -> int:
    """Return how many tokens have a cache of about so many bytes; at least one.

    Raises:
        ValueError: not a positive number of bytes.
    """
    if nbytes < 1:
        raise ValueError(f"{nbytes} bytes are no cache")
    return max(1, round(nbytes / BYTES_PER_TOKEN))


def pieces(tokens: int) -> Iterator[Piece]:
    """Yield the chunks of a prompt in the order in which vLLM hands them out."""
    for step in range(0, tokens, STEP_TOKENS):
        until = min(step + STEP_TOKENS, tokens)
        for layer in range(len(LAYOUT.layers)):
            for start in range(step, until, CHUNK_TOKENS):
                yield Piece(layer, start, min(start + CHUNK_TOKENS, until))


class CacheData:
    """Keys and values for every chunk: `VARIANTS` different ones, used by turns.

    Normal numbers, each channel with a scale of its own, rounded to bfloat16. Together they are
    larger than a processor's caches.
    """

    VARIANTS: Final = 8

    def __init__(self) -> None:
        random = np.random.default_rng(20261204)
        heads, dim = 8, 128
        scales = np.exp(random.standard_normal((heads, dim), np.float32) * _CHANNEL_SPREAD)
        self._flat: list[np.ndarray] = []
        for _ in range(self.VARIANTS):
            numbers = random.standard_normal((2 * CHUNK_TOKENS, heads, dim), np.float32) * scales
            bits = numbers.view(np.uint32)
            # To nearest, ties to even, as hardware rounds.
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            self._flat.append(rounded.astype(np.uint16).reshape(-1))

    def arrays(self, index: int, piece: Piece) -> list[np.ndarray]:
        """Return keys and values `[tokens, 8, 128]` as uint16 views, one right after the other."""
        tokens = piece.end - piece.start
        flat = self._flat[index % self.VARIANTS]
        size = tokens * 8 * 128
        return [flat[at : at + size].reshape(tokens, 8, 128) for at in (0, size)]

    def raw(self, index: int, piece: Piece) -> memoryview:
        """Return the bytes of `arrays`, as one."""
        return (
            self._flat[index % self.VARIANTS][: 2 * (piece.end - piece.start) * 8 * 128]
            .view(np.uint8)
            .data
        )
