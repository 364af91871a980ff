"""Running the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from click.testing import CliRunner, Result

from cli.main import main

Baton: TypeAlias = Callable[..., Result]
"""Takes a command's words, and `input` as the text of its stdin."""


def run_baton(*arguments: str, input: str | None = None) -> Result:
    """Run a command; its result has stdout and stderr apart."""
    return CliRunner().invoke(main, arguments, input=input)
