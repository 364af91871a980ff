"""The engine process: `python -m engines.process ENGINE FD`.

Started by a node with one end of a socketpair as file descriptor FD. The main thread runs the
engine, a step at a time between messages; one thread reads the socket, one writes it, and some
encode chunks. When the node closes its end, or dies, the process ends at once.
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import socket
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from loguru import logger

from engines.base import EngineError
from engines.channel import NodeChannel
from engines.chunks import ChunkSender
from protocols.engine import (
    Acknowledge,
    Cancel,
    Cancelled,
    EngineName,
    Failed,
    Generate,
    Inject,
    Injected,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    NodeMessage,
    Prefill,
    Receive,
    Share,
    Shutdown,
    Tokenize,
    Tokenized,
)
from protocols.errors import ProtocolError
from protocols.framing import Frame
from protocols.kv_prefill.messages import pack_tokens

if TYPE_CHECKING:
    from engines.base import Engine, EngineFactory

__all__ = ["EngineProcess", "main"]

_MAX_INBOX: Final = 64 << 20
"""Bytes of payloads, but for those in shared memory, that wait for the engine's step to end; more
stay with the node."""
_INBOX_PATIENCE_S: Final = 2.0
"""For room in the inbox. Then one more frame is read: the step may itself be waiting for an
`Acknowledge` that comes after it."""


class _Inbox:
    """What the node has said and the engine has not heard."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._frames: deque[Frame[NodeMessage]] = deque()
        self._size = 0

    def put(self, frame: Frame[NodeMessage]) -> None:
        """Add a frame, once there is room for its payload or it has waited for long."""
        with self._changed:
            self._changed.wait_for(lambda: self._size < _MAX_INBOX, _INBOX_PATIENCE_S)
            self._frames.append(frame)
            if not (isinstance(frame.message, Inject) and frame.message.at is not None):
                self._size += len(frame.payload)
            self._changed.notify_all()

    def take(self, *, block: bool) -> list[Frame[NodeMessage]]:
        """Remove and return all frames; with `block`, wait for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or not block)
            frames = list(self._frames)
            self._frames.clear()
            self._size = 0
            self._changed.notify_all()
        return frames


class EngineProcess:
    """Runs one engine on the messages of one channel.

    Args:
        engine: made with `channel` and `sink`, nothing loaded.
        channel: to the node.
        sink: takes the engine's chunks.
    """

    def __init__(self, engine: Engine, channel: NodeChannel, sink: ChunkSender) -> None:
        self._engine = engine
        self._channel = channel
        self._sink = sink
        self._inbox = _Inbox()

    def run(self) -> int:
        """Work until the node says `Shutdown`; return the exit status."""
        threading.Thread(target=self._read, name="channel-reader", daemon=True).start()
        busy = False
        while True:
            for frame in self._inbox.take(block=not busy):
                if isinstance(frame.message, Shutdown):
                    self._engine.unload()
                    self._sink.close()
                    self._channel.close()
                    return 0
                if not self._handle(frame):
                    self._channel.close()
                    return 1
            busy = self._engine.step()

    def _read(self) -> None:
        """Feed the inbox; act at once on what must not wait for the engine's step."""
        try:
            for frame in self._channel.frames():
                message = frame.message
                if isinstance(message, Acknowledge):
                    self._sink.acknowledge(message.request, message.size, message.at)
                    continue
                if isinstance(message, Prefill):
                    self._sink.expect(message.request)
                elif isinstance(message, Cancel):
                    # A step may be waiting for room for this very request's chunks.
                    self._sink.cancel(message.request)
                self._inbox.put(frame)
        except (OSError, ProtocolError) as error:
            logger.error("the channel to the node broke: {}", error)
        # Nobody is left to work for, and the main thread may be in a step of many seconds.
        os._exit(0)

    def _handle(self, frame: Frame[NodeMessage]) -> bool:
        """Act on one message; return whether to go on."""
        message = frame.message
        if isinstance(message, Load):
            return self._load(message)
        if isinstance(message, Shutdown | Acknowledge | Share):
            return True
        try:
            self._dispatch(message, frame.payload)
        except EngineError as error:
            self._engine.cancel(message.request)
            self._sink.discard(message.request)
            self._channel.send(
                Failed(request=message.request, code=error.code, reason=error.reason)
            )
        return True

    def _dispatch(
        self,
        message: Tokenize | Prefill | Receive | Inject | Generate | Cancel,
        payload: memoryview,
    ) -> None:
        engine = self._engine
        match message:
            case Tokenize():
                tokens = engine.tokenize(message.messages)
                self._channel.send(Tokenized(request=message.request, tokens=pack_tokens(tokens)))
            case Prefill():
                engine.prefill(message)
            case Receive():
                engine.receive(message)
            case Inject():
                engine.inject(message, payload)
                if message.at is not None:
                    self._channel.send(Injected(message.request, message.at))
            case Generate():
                engine.generate(message)
            case Cancel():
                engine.cancel(message.request)
                self._channel.send(Cancelled(request=message.request))

    def _load(self, message: Load) -> bool:
        def progress(stage: str, fraction: float) -> None:
            self._channel.send(Loading(stage=stage, fraction=fraction))

        try:
            capabilities = self._engine.load(message, progress)
        except EngineError as error:
            self._channel.send(LoadFailed(reason=error.reason))
            return False
        self._channel.send(Loaded(epoch=secrets.token_hex(8), capabilities=capabilities))
        return True


def main(argv: list[str]) -> int:
    """Run the engine named by `argv[0]` on the socket whose file descriptor is `argv[1]`."""
    name, descriptor = cast("EngineName", argv[0]), int(argv[1])
    if name == "mlx":
        from engines.mlx.blas import preload

        preload([sys.executable, "-m", "engines.process", *argv])
    # Libraries print to stdout, which nobody reads; and an interrupt from the terminal is the
    # node's to handle, which then shuts its engines down in order.
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = NodeChannel(socket.socket(fileno=descriptor))
    sink = ChunkSender(channel)
    create: EngineFactory = importlib.import_module(f"engines.{name}.engine").create
    return EngineProcess(create(channel, sink), channel, sink).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
