"""Processes of this package that say a line when they are told one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

__all__ = ["LineProcess", "line_process"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class LineProcess:
    """Made by `line_process`."""

    def __init__(self, process: trio.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._pending = b""

    async def tell(self) -> None:
        """Say an empty line to it."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(b"\n")

    async def hear(self) -> bytes:
        """Return the next line that it says; fails with its log."""
        assert self._process.stdout is not None
        with trio.move_on_after(PATIENCE_S):
            while b"\n" not in self._pending:
                more = await self._process.stdout.receive_some()
                if not more:
                    break
                self._pending += more
        line, end, self._pending = self._pending.partition(b"\n")
        assert end, f"it says nothing\n{self._log.read_text()}"
        return line

    async def kill(self) -> None:
        """End it as a power failure would."""
        self._process.kill()
        await self._process.wait()

    async def end(self) -> None:
        """Have it end by itself, and end it if it does not."""
        if self._process.stdin is not None:
            await self._process.stdin.aclose()
        with trio.move_on_after(10):
            await self._process.wait()
        if self._process.returncode is None:
            await self.kill()


@asynccontextmanager
async def line_process(module: str, log: Path, *arguments: str) -> AsyncGenerator[LineProcess]:
    """Run `tests.support.MODULE` while open."""
    with log.open("ab") as errors:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", f"tests.support.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
        )
    running = LineProcess(process, log)
    try:
        yield running
    finally:
        with trio.CancelScope(shield=True):
            await running.end()
