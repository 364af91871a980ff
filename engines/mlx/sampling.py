"""Chooses tokens: greedily, or at random from a seed that no other request touches."""

from __future__ import annotations

import math
import secrets

import mlx.core as mx

from engines.base import EngineError
from protocols.chat import Sampling

__all__ = ["Sampler"]


class Sampler:
    """Chooses one request's tokens, in the order temperature, top-k, top-p that vLLM has too.

    Args:
        sampling: with `seed` None a random one is drawn.

    Raises:
        EngineError: a parameter is out of its range.
    """

    def __init__(self, sampling: Sampling) -> None:
        in_range = (
            0 <= sampling.temperature < math.inf
            and 0 < sampling.top_p <= 1
            and sampling.top_k >= 0
            and sampling.max_tokens >= 0
        )
        if not in_range:
            raise EngineError(
                "bad_request",
                "temperature, top_k and max_tokens must be at least 0 and top_p in (0, 1]: "
                f"{sampling}",
            )
        self._temperature = sampling.temperature
        self._top_p = sampling.top_p
        self._top_k = sampling.top_k
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._key = mx.random.key(seed % (1 << 64))

    def choose(self, logits: mx.array) -> mx.array:
        """Return the next token's id, not evaluated yet, from logits `[vocab]` of any dtype."""
        if self._temperature == 0:
            return mx.argmax(logits)
        self._key, key = mx.random.split(self._key)
        logits = logits.astype(mx.float32) / self._temperature
        if 0 < self._top_k < logits.size:
            smallest_kept = mx.min(mx.topk(logits, self._top_k))
            logits = mx.where(logits < smallest_kept, -mx.inf, logits)
        if self._top_p == 1:
            return mx.random.categorical(logits, key=key)
        order = mx.argsort(-logits)
        ordered = logits[order]
        probabilities = mx.softmax(ordered)
        mass_before = mx.cumsum(probabilities) - probabilities
        kept = mx.where(mass_before < self._top_p, ordered, -mx.inf)
        return order[mx.random.categorical(kept, key=key)]
