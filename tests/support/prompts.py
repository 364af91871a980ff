"""Prompts of known kinds for tests with real models."""

from __future__ import annotations

from pathlib import Path

__all__ = ["notebook", "question"]

_TEXT = (Path(__file__).parents[2] / "cli" / "demo_prompt.txt").read_text(encoding="utf-8")


def notebook(paragraphs: int) -> str:
    """Return the first paragraphs of the demo's text, of about 150 to 250 tokens each."""
    return "\n\n".join(_TEXT.split("\n\n")[: paragraphs + 2])


def question(paragraphs: int, ask: str) -> str:
    """Return that text with a question after it."""
    return f"{notebook(paragraphs)}\n\n{ask}"
