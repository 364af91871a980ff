"""The cache layout of a model: what each layer keeps per token, and how it is laid out on the wire.

A model is a list of layers, and each layer's cache is one of four kinds. A chunk carries one
layer's cache for a range of tokens; its raw payload is the layer's arrays one after the other,
each C-contiguous with the tokens in the first dimension, little-endian.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import msgspec

__all__ = [
    "ITEM_SIZES",
    "ArraySpec",
    "AttentionLayer",
    "CacheLayout",
    "DType",
    "LatentLayer",
    "LayerLayout",
    "StateArray",
    "StateLayer",
    "WindowLayer",
]

DType: TypeAlias = Literal["bfloat16", "float16", "float32", "float8_e4m3fn"]

ITEM_SIZES: dict[DType, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1}
"""Bytes per element."""

MAX_DIM = 1 << 24
"""No dimension of a layout may be larger; keeps the bytes per token of one far below 2**63."""

Dim: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_DIM)]
Shape: TypeAlias = Annotated[tuple[Dim, ...], msgspec.Meta(max_length=8)]


class ArraySpec(msgspec.Struct, frozen=True):
    """One array inside a chunk's raw payload."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


class AttentionLayer(msgspec.Struct, frozen=True, tag="attention"):
    """Keys `[tokens, kv_heads, k_dim]` and values `[tokens, kv_heads, v_dim]` of every token."""

    kv_heads: Dim
    k_dim: Dim
    v_dim: Dim

    def arrays(self, tokens: int, dtype: DType) -> tuple[ArraySpec, ...]:
        """Return the arrays that a chunk of `tokens` tokens carries, in payload order."""
        return (
            ArraySpec("keys", (tokens, self.kv_heads, self.k_dim), dtype),
            ArraySpec("values", (tokens, self.kv_heads, self.v_dim), dtype),
        )

    def needed(self, start: int, end: int) -> tuple[int, int]:
        """Return the token range that must be sent for `[start, end)` to be usable."""
        return start, end


class WindowLayer(msgspec.Struct, frozen=True, tag="window"):
    """As attention, of which only the last `window` tokens are needed."""

    kv_heads: Dim
    k_dim: Dim
    v_dim: Dim
    window: Annotated[int, msgspec.Meta(ge=1, le=MAX_DIM)]

    arrays = AttentionLayer.arrays

    def needed(self, start: int, end: int) -> tuple[int, int]:
        """Return the token range that must be sent for `[start, end)` to be usable."""
        return max(start, end - self.window), end


class LatentLayer(msgspec.Struct, frozen=True, tag="latent"):
    """Multi-head latent attention: the latent `[tokens, rank]`, the rope key `[tokens, rope_dim]`.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
    """

    rank: Dim
    rope_dim: Dim

    def arrays(self, tokens: int, dtype: DType) -> tuple[ArraySpec, ...]:
        """Return the arrays that a chunk of `tokens` tokens carries, in payload order."""
        return (
            ArraySpec("latent", (tokens, self.rank), dtype),
            ArraySpec("rope_key", (tokens, self.rope_dim), dtype),
        )

    needed = AttentionLayer.needed


class StateArray(msgspec.Struct, frozen=True):
    """Shape and dtype of one recurrent-state array; it has no token dimension."""

    name: str
    shape: Shape
    dtype: DType


class StateLayer(msgspec.Struct, frozen=True, tag="state"):
    """Recurrent state (GatedDeltaNet, Mamba), valid at one token position; entries may be absent.

    A chunk of it carries the whole state as it is after the last token of the chunk's range.
    """

    states: tuple[StateArray | None, ...]

    def arrays(self, tokens: int, dtype: DType) -> tuple[ArraySpec, ...]:
        """Return the arrays that a chunk carries, in payload order, whatever its token range."""
        return tuple(ArraySpec(s.name, s.shape, s.dtype) for s in self.states if s is not None)

    def needed(self, start: int, end: int) -> tuple[int, int]:
        """Return the token range that must be sent: the last token's, whose state is the whole."""
        return max(start, end - 1), end


LayerLayout: TypeAlias = AttentionLayer | WindowLayer | LatentLayer | StateLayer


class CacheLayout(msgspec.Struct, frozen=True):
    """Every layer's layout in model order, and the dtype of the arrays that do not name their own.

    `fingerprint` names what makes two checkpoints' caches interchangeable (architecture, layer
    shapes, rope parameters, vocabulary): caches move only between equal fingerprints.
    """

    dtype: DType
    layers: tuple[LayerLayout, ...]
    fingerprint: str

    def arrays(self, layer: int, tokens: int) -> tuple[ArraySpec, ...]:
        """Return the arrays of a chunk of `tokens` tokens of `layer`.

        Raises:
            IndexError: there is no such layer.
        """
        return self.layers[layer].arrays(tokens, self.dtype)

    def nbytes(self, layer: int, tokens: int) -> int:
        """Return the raw payload size in bytes of a chunk of `tokens` tokens of `layer`."""
        return sum(array.nbytes for array in self.arrays(layer, tokens))

    def total_nbytes(self, start: int, end: int) -> int:
        """Return the bytes that making `[start, end)` usable on the other side takes, raw."""
        total = 0
        for index, layer in enumerate(self.layers):
            first, last = layer.needed(start, end)
            total += self.nbytes(index, last - first)
        return total
