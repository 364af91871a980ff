"""Elements of a sender's dtype, written to the memory of an MLX array of another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np

from engines.base import EngineError
from protocols.cache import DType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["INJECTABLE_DTYPES", "writer"]

INJECTABLE_DTYPES: Final[tuple[DType, ...]] = ("bfloat16", "float16", "float32")
"""Those of a sender that can be written to any of the three that MLX computes in."""

_FLOAT16_MAX: Final = np.float32(65504)


def writer(wire: DType, dtype: mx.Dtype) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return what copies arrays of the sender's dtype to places in an array of MLX's.

    Both are of one shape, with bfloat16 as its bits; float16 is bits on MLX's side alone (see
    `numpy_view`). What the dtype of the place has no bits for is rounded to the nearest, ties to
    even; what is too large for float16 becomes its largest.

    Raises:
        EngineError: there is no such conversion.
    """
    if wire not in INJECTABLE_DTYPES or dtype not in (mx.float32, mx.float16, mx.bfloat16):
        raise EngineError("unsupported", f"a cache in {wire} for a model that computes in {dtype}")
    if dtype == mx.float32:
        return _widen_bfloat16 if wire == "bfloat16" else _copy
    if str(dtype) == f"mlx.core.{wire}":
        return _copy_bits
    return partial(_to_float16 if dtype == mx.float16 else _to_bfloat16, wire)


def _widen_bfloat16(source: np.ndarray, target: np.ndarray) -> None:
    # A bfloat16 is the upper half of a float32.
    np.left_shift(source, 16, out=target.view(np.uint32), dtype=np.uint32)


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target, source)


def _copy_bits(source: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target, source.view(np.uint16))


def _to_float16(wire: DType, source: np.ndarray, target: np.ndarray) -> None:
    exact = _float32(wire, source)
    target.view(np.float16)[...] = np.clip(exact, -_FLOAT16_MAX, _FLOAT16_MAX)


def _to_bfloat16(wire: DType, source: np.ndarray, target: np.ndarray) -> None:
    bits = _float32(wire, source).view(np.uint32)
    # Half of what is cut off, less one where the kept part is even, carries as rounding should.
    target[...] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _float32(wire: DType, source: np.ndarray) -> np.ndarray:
    if wire == "bfloat16":
        return np.left_shift(source, 16, dtype=np.uint32).view(np.float32)
    return np.ascontiguousarray(source, np.float32)
