"""mlx-lm's caches: what layout they have, and room for them in one piece.

A `KVCache` of mlx-lm holds keys and values `[1, kv_heads, capacity, dim]`, of which the first
`offset` tokens count. It grows by copying, 256 tokens at a time; here it is made large enough at
once, and may be filled from outside through `numpy_view`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import mlx.core as mx
import numpy as np

from engines.config import Config, text_config
from engines.mlx.parity import injection_obstacle
from protocols.cache import AttentionLayer

if TYPE_CHECKING:
    import mlx.nn as nn

__all__ = [
    "PromptCache",
    "Room",
    "allocate",
    "as_caches",
    "attention_layers",
    "numpy_view",
    "round_up",
]

Room: TypeAlias = "list[tuple[mx.array, mx.array]]"
"""Each layer's keys and values, `[1, kv_heads, capacity, dim]`."""

_STEP: Final = 256
"""Granularity of `KVCache`'s own growth."""


class PromptCache(Protocol):
    """One layer's cache, as mlx-lm's models take it."""

    @property
    def state(self) -> object:
        """Its arrays, nested in any way."""
        ...


def attention_layers(model: nn.Module, config: Config) -> tuple[list[AttentionLayer], str | None]:
    """Find the layout from the caches that a model fills for one token.

    Returns:
        The layers; or none, and the reason why caches from elsewhere cannot be put in.
    """
    from mlx_lm.models.cache import KVCache, make_prompt_cache

    if obstacle := injection_obstacle(config):
        return [], obstacle
    text = text_config(config)
    if text.get("kv_lora_rank"):
        return [], "latent attention caches cannot be injected yet"
    caches = make_prompt_cache(model)
    expected = text.get("num_hidden_layers")
    if len(caches) != expected:
        return [], f"{len(caches)} caches for {expected} layers"
    others = sorted({type(cache).__name__ for cache in caches if type(cache) is not KVCache})
    if others:
        return [], f"caches of type {', '.join(others)} cannot be injected yet"
    model(mx.array([[0]]), cache=caches)
    if unused := [index for index, cache in enumerate(caches) if cache.keys is None]:
        return [], f"layers {unused} keep no cache"
    return [
        AttentionLayer(
            kv_heads=cache.keys.shape[1], k_dim=cache.keys.shape[3], v_dim=cache.values.shape[3]
        )
        for cache in caches
    ], None


def allocate(layers: Sequence[AttentionLayer], capacity: int, dtype: mx.Dtype) -> Room:
    """Make room for `capacity` tokens (rounded up) in every layer, zeroed."""
    capacity = round_up(capacity, _STEP)
    room = [
        (
            mx.zeros((1, layer.kv_heads, capacity, layer.k_dim), dtype),
            mx.zeros((1, layer.kv_heads, capacity, layer.v_dim), dtype),
        )
        for layer in layers
    ]
    mx.eval(room)
    return room


def as_caches(room: Room, tokens: int) -> list[PromptCache]:
    """Make caches of the memory in `room`, the first `tokens` of which are filled."""
    from mlx_lm.models.cache import KVCache

    caches: list[PromptCache] = []
    for keys, values in room:
        cache = KVCache()
        cache.state = keys, values, tokens
        caches.append(cache)
    return caches


def numpy_view(array: mx.array) -> np.ndarray:
    """Return a writable view of an evaluated array's memory, 16-bit elements as their bits.

    MLX does not see the writes: nothing that depends on the array may have been computed, or be
    in the making. https://ml-explore.github.io/mlx/build/html/usage/numpy.html
    """
    bits = array if array.dtype == mx.float32 else array.view(mx.uint16)
    return np.array(bits, copy=False)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below `number`."""
    return -(-number // multiple) * multiple
