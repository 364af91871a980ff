"""Starting and ending an engine process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio
from loguru import logger

from node.errors import EngineDied
from node.instances.connection import EngineConnection
from node.instances.memory import share_memory
from protocols.engine import EngineName, Shutdown

__all__ = ["EngineHandle", "engine_command", "start_engine"]

SHUTDOWN_TIMEOUT_S: Final = 3.0
"""From `Shutdown` to the kill."""

SOCKET_BUFFER: Final = 2 << 20
"""Bytes in flight to an engine and from it, where the system allows so many: a chunk at a time, and
not a third of one, wakes the other side up."""

LOG_TAIL: Final = 20
"""Lines of an engine's log kept to explain its death."""


class EngineHandle:
    """A running engine process and the connection to it."""

    def __init__(self, process: trio.Process, connection: EngineConnection) -> None:
        self.process = process
        self.connection = connection
        self.log: deque[str] = deque(maxlen=LOG_TAIL)

    def epitaph(self) -> str:
        """Say in a line how the process ended."""
        status = self.process.returncode
        last = next((line for line in reversed(self.log) if line.strip()), "")
        how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
        return f"the engine process ended ({how})" + (f": {last.strip()}" if last else "")


def engine_command(engine: EngineName) -> list[str]:
    """Return the command that runs an engine; the file descriptor is added to it."""
    # -P: the interpreter must find the packages it is installed with, not files that lie in the
    # directory where the node was started.
    return [sys.executable, "-P", "-m", "engines.process", engine]


@asynccontextmanager
async def start_engine(
    command: Sequence[str], label: str, *, shared_memory: bool = True
) -> AsyncIterator[EngineHandle]:
    """Run an engine process for the length of the `async with` block.

    The process is spawned, never forked from this one. It is asked to shut down at the end, and
    killed when it does not; it also ends by itself when this process dies.

    Args:
        command: of the engine process, to which the file descriptor of its socket is added.
        label: names it in the log.
        shared_memory: offer the engine memory for the bytes of caches; without, they go over the
            socket.

    Raises:
        OSError: the process cannot be started.
    """
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
    with theirs:
        try:
            memory = share_memory(ours) if shared_memory else None
            process = await trio.lowlevel.open_process(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except BaseException:
            ours.close()
            raise
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    connection = EngineConnection(stream, memory)
    handle = EngineHandle(process, connection)
    # The connection outlives a cancellation from outside until the process has been asked to end.
    background = trio.CancelScope(shield=True)

    async def attend() -> None:
        with background:
            async with trio.open_nursery() as attending:
                attending.start_soon(connection.run)
                attending.start_soon(_copy_log, handle, label)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attend)
        try:
            yield handle
        finally:
            with trio.CancelScope(shield=True):
                await _end(handle)
            background.cancel()


async def _end(handle: EngineHandle) -> None:
    with trio.move_on_after(SHUTDOWN_TIMEOUT_S):
        try:
            await handle.connection.send(Shutdown())
        except EngineDied:
            logger.debug("the engine process had ended before it was asked to")
        await handle.process.wait()
    if handle.process.returncode is None:
        handle.process.kill()
        await handle.process.wait()
    handle.connection.close("the engine was shut down")


async def _copy_log(handle: EngineHandle, label: str) -> None:
    stream = handle.process.stderr
    if stream is None:
        return
    partial = b""
    async for data in stream:
        *lines, partial = (partial + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            handle.log.append(text)
            logger.debug("[{}] {}", label, text)
