"""Finds child processes by their command lines."""

from __future__ import annotations

from contextlib import suppress

import psutil

__all__ = ["children_with"]


def children_with(word: str, parent: int | None = None) -> list[psutil.Process]:
    """Return the children of a process, its children's too, whose command line has `word` in it.

    Children that end meanwhile, or that have ended and are not yet waited for, have no command
    line and are left out.

    Args:
        word: part of an argument.
        parent: pid; this process by default.
    """
    found: list[psutil.Process] = []
    for child in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(word in each for each in child.cmdline()):
                found.append(child)
    return found
