"""Two nodes of this machine for a command that measures them, and what is going on, on stderr."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TypeAlias

from rich.console import Console
from rich.text import Text

from bench.client import BenchError
from bench.namespaces import NamespacesUnavailable
from bench.nodes import LocalNode, NodeFailed, start_pair

__all__ = ["Tell", "demo_prompt", "local_pair"]

Tell: TypeAlias = Callable[[str], None]
"""Says in words what is being done."""


def demo_prompt() -> str:
    """Return a text of about 1,950 tokens with a question at its end."""
    return (resources.files("cli") / "demo_prompt.txt").read_text(encoding="utf-8")


@contextmanager
def local_pair(
    model: str, purpose: str, *, link_mb_per_s: float | None = None
) -> Iterator[tuple[LocalNode, LocalNode, Tell]]:
    """Run a prefill node and a decode node while open.

    Exits with status 1, after telling why, when they fail or what is done with them does.

    Args:
        model: which both load.
        purpose: in one word, the command's name.
        link_mb_per_s: see `start_pair`.
    """
    console = Console(stderr=True, highlight=False)
    try:
        with console.status("starting") as status:

            def tell(what: str) -> None:
                status.update(what)
                if not console.is_terminal:
                    console.print(what)

            cluster = f"{purpose}-{secrets.token_hex(3)}"
            with start_pair(model, cluster, tell, link_mb_per_s=link_mb_per_s) as (prefill, decode):
                yield prefill, decode, tell
    except (NodeFailed, BenchError, NamespacesUnavailable) as error:
        # As text: the log that an error quotes may hold what reads as markup.
        console.print(Text.assemble((f"The {purpose} failed: ", "red"), str(error)))
        sys.exit(1)
