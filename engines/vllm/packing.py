"""How vLLM's CPU attention packs a block's keys and values, learnt by trying it out.

The kernels keep a block's interior in the order that the instruction set in use likes best (AMX
tiles, transposed vectors, ...). The kernel that stores tokens is the one authority on that order:
it is given a block whose elements spell their own positions, one bit per pass, and the block is
then read to see where each went. What comes out is exact for whatever order this build uses.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from engines.base import EngineError

if TYPE_CHECKING:
    import torch

__all__ = ["Axis", "PackedOrder", "factorise", "probe"]

Offsets = npt.NDArray[np.int64]

Axis = tuple[tuple[int, int], ...]
"""An axis as (size, stride) digits, the outermost first, strides in elements."""


class PackedOrder(NamedTuple):
    """Where one head's keys, or values, of a block lie: token `t`, element `d` at `offsets[t, d]`.

    Every order seen so far is a strided array in disguise (tiles are digits of an index), and then
    `tokens` and `elements` hold its axes: copying through strides is 2 to 4 times as fast as
    gathering through `offsets`. Both are None for any other order.
    """

    offsets: Offsets
    tokens: Axis | None
    elements: Axis | None


@cache
def probe(
    block_size: int, head_dim: int, dtype: torch.dtype, isa: str
) -> tuple[PackedOrder, PackedOrder]:
    """Return the order of keys and of values within a block.

    Args:
        block_size: tokens per block.
        head_dim: elements per head and token, of keys and of values alike.
        dtype: the cache's.
        isa: vLLM's name of the instruction set that its attention uses.

    Raises:
        EngineError: `unsupported`, if the store does not permute a block's elements.
    """
    import torch
    from vllm import _custom_ops as ops

    size = block_size * head_dim
    block = torch.zeros(1, 1, block_size * 2, head_dim, dtype=dtype)
    key_block, value_block = block.chunk(2, dim=2)
    slots = torch.arange(block_size)
    positions = torch.arange(size).view(block_size, 1, head_dim)
    found = [torch.zeros(size, dtype=torch.int64) for _ in range(2)]
    for bit in range((size - 1).bit_length()):
        spelt = ((positions >> bit) & 1).to(dtype)
        block.zero_()
        ops.cpu_attn_reshape_and_cache(spelt, spelt, key_block, value_block, slots, isa)
        for position, stored in zip(found, (key_block, value_block), strict=True):
            position |= stored.reshape(-1).to(torch.int64) << bit
    keys, values = (_order(position.numpy(), block_size, head_dim) for position in found)
    return keys, values


def factorise(offsets: Offsets) -> Axis | None:
    """Write `offsets` as a sum of digits times strides, if it is one.

    Example: `[0, 1, 8, 9]` is `((2, 8), (2, 1))`.
    """
    length = len(offsets)
    digits: list[tuple[int, int]] = []
    done = 1
    while done < length:
        stride = int(offsets[done] - offsets[0])
        size = 1
        while (size + 1) * done <= length and np.array_equal(
            offsets[size * done : (size + 1) * done], offsets[:done] + size * stride
        ):
            size += 1
        if size == 1 or length % (size * done):
            return None
        digits.append((size, stride))
        done *= size
    return tuple(reversed(digits))


def _order(stored: Offsets, block_size: int, head_dim: int) -> PackedOrder:
    """Turn "which element is stored here" around into "where is this element stored"."""
    offsets = np.argsort(stored)
    if not np.array_equal(stored[offsets], np.arange(math.prod((block_size, head_dim)))):
        raise EngineError(
            "unsupported",
            f"vLLM's CPU cache does not keep the {block_size} x {head_dim} elements of a block",
        )
    offsets = offsets.reshape(block_size, head_dim)
    tokens, elements = offsets[:, 0], offsets[0]
    # Separable: where a token lies and where an element lies do not depend on one another.
    if offsets[0, 0] == 0 and np.array_equal(offsets, tokens[:, None] + elements):
        token_axis, element_axis = factorise(tokens), factorise(elements)
        if token_axis is not None and element_axis is not None:
            return PackedOrder(offsets, token_axis, element_axis)
    return PackedOrder(offsets, None, None)
