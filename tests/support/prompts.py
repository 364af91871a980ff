"""Prompts of known kinds for tests with real models."""

from __future__ import annotations

from cli.local_pair import demo_prompt

__all__ = ["notebook", "question"]


def notebook(paragraphs: int) -> str:
    """Return the first paragraphs of the demo's text, of about 150 to 250 tokens each."""
    return "\n\n".join(demo_prompt().split("\n\n")[: paragraphs + 2])


def question(paragraphs: int, ask: str) -> str:
    """Return that text with a question after it."""
    return f"{notebook(paragraphs)}\n\n{ask}"
