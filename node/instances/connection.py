"""The node's end of the socketpair to one engine process."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Final, TypeAlias

import msgspec
import trio
from loguru import logger

from node.errors import EngineDied
from node.instances.memory import EngineMemory
from protocols.engine import (
    Acknowledge,
    Cancel,
    Cancelled,
    EngineMessage,
    Failed,
    Finished,
    Inject,
    Injected,
    Loaded,
    LoadFailed,
    Loading,
    NodeMessage,
    PrefillChunk,
    PrefillFinished,
    Shared,
    Tokenized,
)
from protocols.errors import Malformed, ProtocolError
from protocols.framing import Frame, FrameReader, ReadAhead, encode_frame

__all__ = ["EngineConnection", "LoadMessage", "RequestHandle"]

LoadMessage: TypeAlias = Loading | Loaded | LoadFailed

CANCEL_TIMEOUT_S: Final = 5.0
"""How long leaving a request waits for the engine to confirm that it has forgotten it."""

_TERMINAL: Final = (Tokenized, PrefillFinished, Finished, Cancelled, Failed)


class RequestHandle:
    """One request's messages to and from the engine.

    An async context manager: leaving it before the engine's terminal message has come cancels the
    request and waits, shielded and with a deadline, until the engine says that it is gone. So it
    does after a failure, which may have crossed a message of ours that began the request anew.
    """

    def __init__(self, connection: EngineConnection, request: str) -> None:
        self.id = request
        self._connection = connection
        self._frames: deque[Frame[EngineMessage]] = deque()
        self._arrived = trio.Event()
        self._terminated = False
        self._failed = False
        self._sent_anything = False

    async def send(self, message: NodeMessage, payload: memoryview | None = None) -> None:
        """Send a message about this request.

        Args:
            message: what to say.
            payload: of an `Inject`, or the one that an `Acknowledge` gives back.

        Raises:
            EngineDied: the engine process is gone.
        """
        self._sent_anything = True
        await self._connection.send(message, payload)

    async def take(self, size: int) -> memoryview:
        """Return memory for the payload of an `Inject`, shared with the engine if there is some.

        It is the caller's until it is sent or given back.
        """
        memory = self._connection.memory
        shared = None if memory is None else await memory.take_soon(size, self.id)
        return memoryview(bytearray(size)) if shared is None else shared

    def give_back(self, payload: memoryview) -> None:
        """Say that a payload from `take` is not in use; no error if it has been sent."""
        if self._connection.memory is not None:
            self._connection.memory.give_back(payload)

    async def receive(self) -> Frame[EngineMessage]:
        """Return the engine's next message about this request, waiting for it.

        Raises:
            EngineDied: the engine process is gone and everything it said has been received.
        """
        while not self._frames:
            self._connection.check()
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._frames.popleft()

    async def __aenter__(self) -> RequestHandle:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            unfinished = self._failed or not self._terminated
            if not unfinished:
                await self._give_back_chunks()
            elif self._sent_anything and self._connection.alive:
                with trio.move_on_after(CANCEL_TIMEOUT_S, shield=True) as scope:
                    await self._cancel()
                if scope.cancelled_caught:
                    logger.warning(
                        "the engine has not confirmed within {} s that request {} is cancelled",
                        CANCEL_TIMEOUT_S,
                        self.id,
                    )
        finally:
            self._connection.forget(self.id)

    async def _give_back_chunks(self) -> None:
        """Let the engine have the memory of chunks that nobody has acknowledged."""
        memory = self._connection.memory
        left = [] if memory is None else memory.unacknowledged(self.id)
        if not left or not self._connection.alive:
            return
        with trio.move_on_after(CANCEL_TIMEOUT_S, shield=True), suppress(EngineDied):
            for payload in left:
                await self._connection.send(Acknowledge(self.id, len(payload)), payload)

    async def _cancel(self) -> None:
        try:
            # After it the engine may use the memory of what it has handed out for something else.
            if self._connection.memory is not None:
                self._connection.memory.forget(self.id)
            await self._connection.send(Cancel(request=self.id))
            while not isinstance((await self.receive()).message, Cancelled):
                pass
        except EngineDied:
            return  # with it, whatever the request held is gone

    def _deliver(self, frame: Frame[EngineMessage]) -> None:
        self._frames.append(frame)
        self._terminated = self._terminated or isinstance(frame.message, _TERMINAL)
        self._failed = self._failed or isinstance(frame.message, Failed)
        self._arrived.set()

    def _wake(self) -> None:
        self._arrived.set()


class EngineConnection:
    """Routes messages between an engine process and the requests that it works on.

    Args:
        stream: connected to the engine process; owned by this object.
        memory: that has been offered to the engine process.
    """

    def __init__(self, stream: trio.SocketStream, memory: EngineMemory | None = None) -> None:
        self.memory = memory
        self._stream = stream
        self._ahead = ReadAhead()
        self._encoder = msgspec.msgpack.Encoder()
        self._sending = trio.Lock()
        self._handles: dict[str, RequestHandle] = {}
        self._dead_because: str | None = None
        self._load_in, self.load_messages = trio.open_memory_channel[LoadMessage](1024)

    @property
    def alive(self) -> bool:
        """Whether the engine process still holds its end."""
        return self._dead_because is None

    @property
    def requests(self) -> int:
        """How many requests are open."""
        return len(self._handles)

    def check(self) -> None:
        """Raise when there is nobody at the other end.

        Raises:
            EngineDied: the engine process is gone.
        """
        if self._dead_because is not None:
            raise EngineDied(self._dead_because)

    def open(self, request: str) -> RequestHandle:
        """Return a handle for a new request.

        Raises:
            EngineDied: the engine process is gone.
            ValueError: a request of that id is open.
        """
        self.check()
        if request in self._handles:
            raise ValueError(f"request {request} is open already")
        handle = RequestHandle(self, request)
        self._handles[request] = handle
        return handle

    def forget(self, request: str) -> None:
        """Deliver nothing more to a request."""
        self._handles.pop(request, None)
        if self.memory is not None:
            self.memory.forget(request)

    async def send(self, message: NodeMessage, payload: memoryview | None = None) -> None:
        """Send a message and the payload that belongs to it.

        The payload of an `Inject` goes through shared memory where there is room. That of an
        `Acknowledge` says which chunk's memory the engine has back.

        A frame once begun is sent whole even when the caller is cancelled: half of one would make
        everything after it unreadable.

        Raises:
            EngineDied: the engine process is gone.
        """
        async with self._sending:
            self.check()
            await trio.lowlevel.checkpoint_if_cancelled()
            message, payload = self._through_memory(message, payload)
            frame = encode_frame(self._encoder, message)
            with trio.CancelScope(shield=True):
                try:
                    await self._stream.send_all(frame)
                    if payload is not None:
                        await self._stream.send_all(payload)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    self.close("the engine process ended")
                    raise EngineDied("the engine process ended") from error

    async def run(self) -> None:
        """Receive until the engine process closes its end, then tell every open request."""
        reader: FrameReader[EngineMessage] = FrameReader(
            msgspec.msgpack.Decoder(EngineMessage),
            lambda message: (
                message.chunk.size
                if isinstance(message, PrefillChunk) and message.at is None
                else 0
            ),
        )
        reason = "the engine process ended"
        try:
            while await self._receive_frame(reader):
                pass
        except OSError as error:
            # What a death looks like when the process left messages of ours unread.
            logger.debug("the channel to the engine process broke: {}", error)
        except trio.ClosedResourceError:
            reason = "the channel to the engine process was closed here"
        except ProtocolError as error:
            reason = f"the engine process broke the protocol: {error}"
            logger.error(reason)
        finally:
            self.close(reason)

    def close(self, reason: str) -> None:
        """Close the socket and let every open request fail with `reason`."""
        if self._dead_because is None:
            self._dead_because = reason
        self._stream.socket.close()
        if self.memory is not None:
            self.memory.close()
        self._load_in.close()
        for handle in self._handles.values():
            handle._wake()

    def _through_memory(
        self, message: NodeMessage, payload: memoryview | None
    ) -> tuple[NodeMessage, memoryview | None]:
        """Return what goes over the socket."""
        memory = self.memory
        if payload is None or not isinstance(message, Inject | Acknowledge):
            return message, payload
        if isinstance(message, Acknowledge):
            at = None if memory is None else memory.acknowledged(payload)
            return msgspec.structs.replace(message, at=at), None
        if memory is None:
            return message, payload
        at = memory.sent(payload)
        if at is None:
            # From another engine of this node, or there was no room when it came.
            copy = memory.take(len(payload), message.request)
            if copy is None:
                return message, payload
            copy[:] = payload
            at = memory.sent(copy)
        return msgspec.structs.replace(message, at=at), None

    async def _receive_frame(self, reader: FrameReader[EngineMessage]) -> bool:
        buffer = memoryview(bytearray(reader.wanted))
        pending = buffer[self._ahead.take_into(buffer) :]
        while pending:
            direct = len(pending) >= self._ahead.size
            into = pending if direct else self._ahead.room
            received = await self._stream.socket.recv_into(into)
            if received == 0:
                reader.eof()
                return False
            if not direct:
                self._ahead.filled(received)
                received = self._ahead.take_into(pending)
            pending = pending[received:]
        frame = reader.feed(buffer)
        if frame is not None:
            self._route(frame)
        return True

    def _route(self, frame: Frame[EngineMessage]) -> None:
        message = frame.message
        memory = self.memory
        if isinstance(message, Shared):
            if memory is not None:
                memory.usable = True
            return
        if isinstance(message, LoadMessage):
            try:
                self._load_in.send_nowait(message)
            except (trio.WouldBlock, trio.BrokenResourceError):
                logger.debug("nobody waits for {}", message)
            return
        if memory is not None:
            if isinstance(message, Injected):
                memory.freed(message.request, message.at)
                return
            if isinstance(message, _TERMINAL):
                memory.freed_all(message.request)
        handle = self._handles.get(message.request)
        if handle is None:
            return
        if isinstance(message, PrefillChunk) and message.at is not None:
            if memory is None:
                raise Malformed("a payload in shared memory, of which there is none")
            payload = memory.arrived(message.request, message.at, message.chunk.size)
            frame = Frame(message, payload)
        handle._deliver(frame)
