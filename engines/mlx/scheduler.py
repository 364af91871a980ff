"""Lets requests take turns: one token for each that writes, and one piece of a prompt."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from loguru import logger

from protocols.engine import Failed, Progress, Token

if TYPE_CHECKING:
    from engines.base import Outbox
    from engines.mlx.sequence import Sequence

__all__ = ["Pacer", "Scheduler"]

_PIECE_S: Final = 0.25
"""Seconds that a piece of a prompt may take: how long a cancellation or a token may wait."""

_SMALLEST_PIECE: Final = 8
_LARGEST_PIECE: Final = 2048


class Pacer:
    """Sizes the pieces that prompts are read in, by how long the last one took.

    Args:
        tokens_per_s: the rate to start with.
    """

    def __init__(self, tokens_per_s: float) -> None:
        self.size = _within_limits(tokens_per_s * _PIECE_S)

    def measured(self, tokens: int, seconds: float) -> None:
        """Take in how long a piece took. One that was cut short only ever makes them smaller."""
        fitting = tokens * _PIECE_S / max(seconds, 1e-6)
        if tokens >= self.size or fitting < self.size:
            # By a factor of two at most: one piece may have been unlucky.
            self.size = _within_limits(min(max(fitting, self.size / 2), self.size * 2))


def _within_limits(size: float) -> int:
    return int(min(max(size, _SMALLEST_PIECE), _LARGEST_PIECE))


class Scheduler:
    """The requests that are being answered.

    Args:
        outbox: takes `Progress`, `Token` and the terminal messages.
        pacer: sizes the pieces.
    """

    def __init__(self, outbox: Outbox, pacer: Pacer) -> None:
        self._outbox = outbox
        self._pacer = pacer
        self._reading: deque[Sequence] = deque()
        self._writing: list[Sequence] = []

    def __contains__(self, request: str) -> bool:
        """Return whether the request is being answered."""
        return any(sequence.request == request for sequence in (*self._reading, *self._writing))

    def add(self, sequence: Sequence) -> None:
        """Answer a request from the next `step` on."""
        if sequence.reading:
            self._reading.append(sequence)
        else:
            self._writing.append(sequence)

    def cancel(self, request: str) -> None:
        """Drop the request with its cache, if there is one of that id."""
        self._reading = deque(s for s in self._reading if s.request != request)
        self._writing = [s for s in self._writing if s.request != request]

    def step(self) -> bool:
        """Write a token of each answer and read a piece of one prompt; return whether to go on."""
        self._writing = [sequence for sequence in self._writing if self._write(sequence)]
        if self._reading:
            sequence = self._reading.popleft()
            if self._read(sequence):
                self.add(sequence)
        return bool(self._reading or self._writing)

    def _read(self, sequence: Sequence) -> bool:
        """Read a piece; return whether the request lives on."""
        try:
            self._pacer.measured(*sequence.read(self._pacer.size))
        except (RuntimeError, ValueError) as error:
            return self._fail(sequence, error)
        self._outbox.send(
            Progress(sequence.request, done=sequence.computed, total=sequence.to_compute)
        )
        return True

    def _write(self, sequence: Sequence) -> bool:
        """Write a token; return whether the request lives on."""
        try:
            step = sequence.write()
        except (RuntimeError, ValueError) as error:
            return self._fail(sequence, error)
        self._outbox.send(Token(sequence.request, token=step.token, text=step.text))
        if step.ended is None:
            return True
        self._outbox.send(sequence.finish(step.ended))
        return False

    def _fail(self, sequence: Sequence, error: Exception) -> bool:
        """End a request that MLX cannot compute; the others go on."""
        logger.opt(exception=error).error("request {} failed in MLX", sequence.request)
        full = "memory" in str(error).lower() or "allocate" in str(error).lower()
        code = "out_of_memory" if full else "engine"
        self._outbox.send(Failed(sequence.request, code=code, reason=f"MLX: {error}"))
        return False
