"""One request's answer: its cache, its prompt as far as it has been read, its text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, cast

import mlx.core as mx

from engines.mlx.sampling import Sampler
from engines.mlx.text import Detokenizer, StopStrings
from protocols.engine import Finished, FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from engines.mlx.caches import PromptCache
    from engines.mlx.loading import LoadedModel
    from protocols.chat import Sampling

__all__ = ["Sequence", "Step"]


class Step(NamedTuple):
    """What decoding one token gave."""

    token: int
    text: str
    ended: FinishReason | None


class Sequence:
    """A prompt being read, then an answer being written, one token at a time.

    Args:
        request: its id.
        loaded: the model.
        tokens: the prompt.
        sampling: how to choose tokens; `max_tokens` 0 or too many is as many as fit the context.
        context: the limit for prompt and answer together.
        caches: mlx-lm's, holding the first `position` tokens of the prompt.
        position: at most the prompt's length less one.

    Raises:
        EngineError: a sampling parameter is out of its range.
    """

    def __init__(
        self,
        request: str,
        loaded: LoadedModel,
        tokens: list[int],
        sampling: Sampling,
        context: int,
        caches: Seq[PromptCache],
        position: int,
    ) -> None:
        self.request = request
        self.to_compute = len(tokens) - 1 - position
        self._loaded = loaded
        self._tokens = tokens
        self._caches = caches
        self._position = position
        self._sampler = Sampler(sampling)
        self._detokenizer = Detokenizer(loaded.decode)
        self._stops = StopStrings(sampling.stop)
        room = context - len(tokens)
        self._limit = min(sampling.max_tokens or room, room)
        self._next = tokens[-1]
        self._completion_tokens = 0
        self._prefill_s = 0.0
        self._decode_s = 0.0

    @property
    def computed(self) -> int:
        """How many of `to_compute` tokens have been computed."""
        return self._position - (len(self._tokens) - 1 - self.to_compute)

    @property
    def reading(self) -> bool:
        """Whether some of the prompt, but for its last token, is still to be computed."""
        return self._position < len(self._tokens) - 1

    def read(self, size: int) -> tuple[int, float]:
        """Compute the next `size` tokens of the prompt, or what is left.

        Returns:
            How many tokens, and the seconds they took.
        """
        started = time.perf_counter()
        piece = self._tokens[self._position : len(self._tokens) - 1][:size]
        # The logits are never evaluated: only the caches are.
        self._loaded.model(mx.array([piece]), cache=self._caches)
        mx.eval([cache.state for cache in self._caches])
        self._position += len(piece)
        seconds = time.perf_counter() - started
        self._prefill_s += seconds
        return len(piece), seconds

    def write(self) -> Step:
        """Decode one token."""
        started = time.perf_counter()
        logits = self._loaded.model(mx.array([[self._next]]), cache=self._caches)
        token = cast("int", self._sampler.choose(logits[0, -1]).item())
        self._decode_s += time.perf_counter() - started
        self._next = token
        self._completion_tokens += 1
        if token in self._loaded.eos:
            return Step(token, "", "stop")
        text = self._stops.add(self._detokenizer.add(token))
        if self._stops.stopped:
            return Step(token, text, "stop")
        return Step(token, text, "length" if self._completion_tokens >= self._limit else None)

    def finish(self, reason: FinishReason) -> Finished:
        """Return the terminal message, with the text that was held back."""
        text = self._stops.add(self._detokenizer.finish()) + self._stops.finish()
        return Finished(
            request=self.request,
            reason="stop" if self._stops.stopped else reason,
            text=text,
            prompt_tokens=len(self._tokens),
            completion_tokens=self._completion_tokens,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
        )
