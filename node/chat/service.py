"""`/baton-chat/1`: requests that arrived at other nodes, and our own sent to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec
import trio
from loguru import logger

from node.chat.channel import Emit
from node.messages import read_message, write_message
from node.transport.errors import TransportError
from node.transport.streams import ByteStream
from protocols.chat import (
    PROTOCOL_ID,
    ChatEvent,
    ChatFailed,
    ChatFinished,
    ChatRequest,
)
from protocols.errors import ProtocolError
from protocols.framing import FrameReader

__all__ = ["Answer", "ChatService", "ask_peer"]

Answer: TypeAlias = Callable[[ChatRequest, Emit], Awaitable[None]]

REQUEST_TIMEOUT_S: Final = 10.0
"""For a request to arrive whole, once its stream is open."""

_requests = msgspec.msgpack.Decoder(ChatRequest)
_events: msgspec.msgpack.Decoder[ChatEvent] = msgspec.msgpack.Decoder(ChatEvent)


class ChatService:
    """Serves the requests that other nodes send.

    Args:
        answer: emits the events of a request's answer.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def serve(self, stream: ByteStream) -> None:
        """Serve one stream to its end.

        Raises:
            ProtocolError: what came is no request.
            TransportError: the stream broke before one had come.
        """
        try:
            with trio.fail_after(REQUEST_TIMEOUT_S):
                request = await read_message(stream, FrameReader(_requests))
        except trio.TooSlowError:
            logger.warning("{} opened a chat stream and sent no request", stream.peer_id)
            await stream.reset()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_closed, stream, nursery.cancel_scope)
            try:
                await self._answer(request, partial(write_message, stream))
            except TransportError as error:
                logger.info("nobody waits for the answer to {} any more: {}", request.id, error)
            nursery.cancel_scope.cancel()


async def ask_peer(
    open_stream: Callable[[str, str], Awaitable[ByteStream]], peer_id: str, request: ChatRequest
) -> AsyncGenerator[ChatEvent]:
    """Send a request to another node and go through the events of its answer.

    The iterator owns the stream: close it (`contextlib.aclosing`) to cancel the request there.

    Raises:
        PeerUnreachable: there is no way to the peer.
        TransportError: the connection broke.
        ProtocolError: the peer said something else than events.
    """
    stream = await open_stream(peer_id, PROTOCOL_ID)
    ended = False
    try:
        await write_message(stream, request)
        reader = FrameReader(_events)
        while not ended:
            event = await read_message(stream, reader)
            ended = isinstance(event, ChatFinished | ChatFailed)
            yield event
    finally:
        await (stream.close() if ended else stream.reset())


async def _cancel_when_closed(stream: ByteStream, scope: trio.CancelScope) -> None:
    """Cancel `scope` when the peer closes its side, which says that it wants no more."""
    try:
        await stream.read_exactly(1)
        logger.warning("{} sent bytes after its chat request", stream.peer_id)
    except (TransportError, ProtocolError) as error:
        logger.debug("a chat stream of {} was closed: {}", stream.peer_id, error)
    scope.cancel()
