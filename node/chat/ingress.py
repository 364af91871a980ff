"""Taking a request in, at any node, and finding the one that answers it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import TypeAlias

from loguru import logger

from node.chat.channel import Emit, events_of
from node.chat.failures import unavailable
from node.chat.service import Answer, ask_peer
from node.errors import BatonError
from node.transport.errors import TransportError
from node.transport.streams import ByteStream
from protocols.chat import ChatDelta, ChatEvent, ChatFailed, ChatRequest, ChatStarted
from protocols.errors import ProtocolError

__all__ = ["Choose", "Ingress", "Prepare"]

Choose: TypeAlias = Callable[[str, frozenset[str]], str | ChatFailed]
"""Chooses, for a model, the peer id of the node that decodes it, some left out; or says why not."""

Prepare: TypeAlias = Callable[[str, Emit], Awaitable[ChatFailed | None]]
"""Waits until some node can answer for a model, and tells of it; or says why none ever will."""


class Ingress:
    """Answers requests with whichever node is best, and another one if that fails at once.

    Args:
        self_id: this node's peer id.
        answer: answers with this node's engines.
        prepare: makes the model available.
        choose: chooses the node.
        open_stream: opens a stream to a peer.
    """

    def __init__(
        self,
        self_id: str,
        answer: Answer,
        prepare: Prepare,
        choose: Choose,
        open_stream: Callable[[str, str], Awaitable[ByteStream]],
    ) -> None:
        self._self_id = self_id
        self._answer = answer
        self._prepare = prepare
        self._choose = choose
        self._open_stream = open_stream

    def open(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
        """Start a request; leaving the context cancels it wherever it is worked on."""
        return events_of(partial(self._run, request))

    async def _run(self, request: ChatRequest, emit: Emit) -> None:
        failure = await self._prepare(request.model, emit)
        if failure is not None:
            await emit(failure)
            return
        tried: frozenset[str] = frozenset()
        attempt = _Attempt(emit)
        while True:
            node = self._choose(request.model, tried)
            if isinstance(node, ChatFailed):
                await emit(failure or node)
                return
            failure = await self._try(node, request, attempt)
            if failure is None:
                return
            if failure.status != 503 or attempt.answered:
                await emit(failure)
                return
            logger.info("request {} failed on {}: {}", request.id, node, failure.message)
            tried |= {node}

    async def _try(self, node: str, request: ChatRequest, attempt: _Attempt) -> ChatFailed | None:
        attempt.failure = None
        if node == self._self_id:
            await self._answer(request, attempt.take)
            return attempt.failure
        try:
            async with aclosing(ask_peer(self._open_stream, node, request)) as events:
                async for event in events:
                    await attempt.take(event)
        except (BatonError, TransportError, ProtocolError) as error:
            return unavailable(f"The node {node}, which was answering, is gone: {error}")
        return attempt.failure


class _Attempt:
    """Passes events on, but a failure back to whoever may try again."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._started = False
        self.answered = False
        """Whether text has been passed on, after which there is no trying again."""
        self.failure: ChatFailed | None = None

    async def take(self, event: ChatEvent) -> None:
        """Take one event of an answer."""
        if isinstance(event, ChatFailed):
            self.failure = event
            return
        if isinstance(event, ChatStarted):
            if self._started:
                return
            self._started = True
        self.answered = self.answered or isinstance(event, ChatDelta)
        await self._emit(event)
