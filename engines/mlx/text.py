"""Turns tokens into text as they come, and stops at stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

__all__ = ["Decode", "Detokenizer", "StopStrings"]

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Decodes token ids, special tokens left out."""

_REPLACEMENT: Final = "\ufffd"

_MAX_PENDING: Final = 8
"""Tokens that may wait for the rest of a character. It has at most 4 bytes, a token at least one;
more than this are not text at all."""


class Detokenizer:
    """Decodes token by token; the pieces concatenate to the decoding of the whole.

    A token's text depends on its neighbour before it (spaces, split characters), so each is
    decoded together with what came before, back to the last place where text was complete.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._context = 0
        self._read = 0

    def add(self, token: int) -> str:
        """Return the text that `token` completes, empty while a character is incomplete."""
        self._tokens.append(token)
        text = self._new_text()
        incomplete = text.endswith(_REPLACEMENT) or not text
        if incomplete and len(self._tokens) - self._read < _MAX_PENDING:
            return ""
        self._context, self._read = self._read, len(self._tokens)
        return text

    def finish(self) -> str:
        """Return what is left: characters that were never completed."""
        text = self._new_text()
        self._context = self._read = len(self._tokens)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._tokens[self._context : self._read])
        return self._decode(self._tokens[self._context :])[len(before) :]


class StopStrings:
    """Passes text on until a stop string appears, holding back what may be the start of one.

    Args:
        stops: the stop strings; empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Return the text that may be shown. Once `stopped`, nothing more comes."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [index for stop in self._stops if (index := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        shown = len(text) - keep
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """Return what was held back: the answer ended before it became a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper start of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
