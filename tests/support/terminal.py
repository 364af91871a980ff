"""A `baton` command on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Terminal:
    """The keyboard and the screen of a command."""

    def __init__(self, *arguments: str, kind: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": kind, "COLUMNS": "120"},
            start_new_session=True,
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` appears, and forget what came up to it."""
        deadline = time.monotonic() + 20
        while text not in self._seen:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._master], [], [], left)
            assert ready, f"{text!r} did not come, but {self._seen!r}"
            self._seen += os.read(self._master, 65536).decode(errors="replace")
        self._seen = self._seen.partition(text)[2]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def baton_terminal(*arguments: str, kind: str = "dumb") -> Iterator[Terminal]:
    """Run a command for the length of the block, with `kind` as TERM."""
    terminal = Terminal(*arguments, kind=kind)
    try:
        yield terminal
    finally:
        terminal.close()
