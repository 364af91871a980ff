"""Measures briefly how fast a model reads and writes here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import mlx.core as mx

if TYPE_CHECKING:
    from engines.mlx.loading import LoadedModel

__all__ = ["Rates", "measure"]

_WARM_UP: Final = 8
_PROMPT: Final = 64
_STEPS: Final = 4
_PATIENCE_S: Final = 1.0
"""What the measured prompt may take; on a slow machine the warm-up serves as the measurement."""


class Rates(NamedTuple):
    """In tokens per second."""

    prefill: float
    decode: float


def measure(loaded: LoadedModel) -> Rates:
    """Read a short prompt and write a few tokens, about a second in all."""
    warm_up = _read(loaded, _WARM_UP)
    fast_enough = _PROMPT * warm_up / _WARM_UP < _PATIENCE_S
    tokens = _PROMPT if fast_enough else _WARM_UP
    seconds = _read(loaded, _PROMPT) if fast_enough else warm_up
    return Rates(prefill=tokens / seconds, decode=_STEPS / _write(loaded, _STEPS))


def _read(loaded: LoadedModel, tokens: int) -> float:
    caches = loaded.empty_caches()
    started = time.perf_counter()
    loaded.model(mx.array([_ids(loaded, tokens)]), cache=caches)
    mx.eval([cache.state for cache in caches])
    return time.perf_counter() - started


def _write(loaded: LoadedModel, steps: int) -> float:
    caches = loaded.empty_caches()
    started = time.perf_counter()
    for token in _ids(loaded, steps):
        mx.eval(loaded.model(mx.array([[token]]), cache=caches))
    return time.perf_counter() - started


def _ids(loaded: LoadedModel, count: int) -> list[int]:
    return [(index * 7919) % loaded.vocab_size for index in range(count)]
