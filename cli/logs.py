"""What a terminal shows while a node runs: its log in plain words, and how far loading is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from loguru import logger
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.text import Text

from protocols.sanity import cleaned_text

if TYPE_CHECKING:
    from loguru import Message

    from node.instances.instance import Instance

__all__ = ["node_display"]

_STYLES: Final = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red"}


@contextmanager
def node_display(level: str) -> Iterator[Callable[[Instance, str, float], None] | None]:
    """Send the log to stderr, from `level` on.

    Yields:
        What draws the progress of loading above the log's end; None when no terminal watches, for
        the log to tell it.
    """
    logger.remove()
    # What peers and clients say ends up in messages, and must not reach a terminal as it is.
    logger.configure(patcher=lambda record: record.update(message=_cleaned(record["message"])))
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        logger.add(sys.stderr, level=level.upper())
        yield None
        return

    def write(message: Message) -> None:
        record = message.record
        # With its traceback where there is one; all a user needs otherwise.
        text = str(message).rstrip() if record["exception"] else record["message"]
        style = _STYLES.get(record["level"].name, "")
        console.print(Text.assemble((f"{record['time']:HH:mm:ss} ", "dim"), (text, style)))

    logger.add(write, level=level.upper(), format="{message}")
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
    progress = Progress(*columns, console=console, transient=True)
    try:
        yield _Loading(progress).show
    finally:
        progress.stop()


def _cleaned(message: str) -> str:
    return "\n".join(cleaned_text(line) for line in message.split("\n"))


class _Loading:
    """A progress bar for each instance that is loading; nothing is redrawn while none is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def show(self, instance: Instance, stage: str, fraction: float) -> None:
        """Draw how far an instance is; a finished bar goes."""
        if fraction >= 1:
            done = self._bars.pop(instance.id, None)
            if done is not None:
                self._progress.remove_task(done)
            if not self._bars:
                self._progress.stop()
            return
        self._progress.start()
        description = f"{instance.spec.model} on {instance.spec.engine}: {stage}"
        bar = self._bars.get(instance.id)
        if bar is None:
            bar = self._bars[instance.id] = self._progress.add_task(description, total=1)
        self._progress.update(bar, completed=fraction, description=description)
