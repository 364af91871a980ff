"""`POST /v1/chat/completions`, streamed as server-sent events or whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from loguru import logger
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from node.http.backend import Backend, RequestFailed
from node.http.errors import INTERNAL_ERROR, ApiError, error_response, from_failure
from node.http.parsing import parse_chat
from node.http.requests import cancelled_on_disconnect, read_body
from node.http.responses import Answer
from node.http.sse import EventStream
from protocols.chat import (
    ChatDelta,
    ChatFailed,
    ChatFinished,
    ChatLoading,
    ChatProgress,
    ChatRequest,
    ChatStarted,
    PrefillPolicy,
)

__all__ = ["ChatEndpoint"]

_Event: TypeAlias = ChatStarted | ChatLoading | ChatProgress | ChatDelta | ChatFinished
_Take: TypeAlias = Callable[[_Event], Awaitable[None]]


class ChatEndpoint:
    """An ASGI endpoint.

    It is no Starlette view because the request's context in the backend has to stay open until the
    last byte of the answer is sent, and has to be left as soon as the client goes.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        default_prefill: PrefillPolicy,
        max_body_bytes: int,
        keep_alive_s: float,
    ) -> None:
        self._backend = backend
        self._default_prefill: PrefillPolicy = default_prefill
        self._max_body_bytes = max_body_bytes
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            body = parse_chat(await read_body(Request(scope, receive), self._max_body_bytes))
        except ClientDisconnect:
            return
        request = body.to_request(f"chatcmpl-{uuid.uuid4().hex}", self._default_prefill)
        answer = Answer(request.id, int(time.time()), request.model, body.include_usage)
        async with cancelled_on_disconnect(receive) as nursery:
            if body.stream:
                stream = EventStream(scope, receive, send)
                nursery.start_soon(stream.keep_alive, self._keep_alive_s)
                error = await self._run(request, _StreamedAnswer(answer, stream).take)
                await (stream.fail(error) if error else stream.end())
            else:
                whole = _WholeAnswer(answer)
                error = await self._run(request, whole.take)
                response = error_response(error) if error else whole.response()
                await response(scope, receive, send)

    async def _run(self, request: ChatRequest, take: _Take) -> ApiError | None:
        """Pass the events of a request to `take`, and return what went wrong, if anything did.

        Nothing is raised through the backend's context: it may hold a nursery, which would wrap it.
        """
        finished = False
        try:
            async with self._backend.open_chat(request) as events:
                async for event in events:
                    if isinstance(event, ChatFailed):
                        return from_failure(event)
                    await take(event)
                    if isinstance(event, ChatFinished):
                        finished = True
                        return None
            logger.error("The events of request {} ended without a terminal one", request.id)
            return INTERNAL_ERROR
        except RequestFailed as error:
            return from_failure(error.failure)
        except Exception:
            logger.exception("Request {} to {} failed unexpectedly", request.id, request.model)
            return None if finished else INTERNAL_ERROR


class _WholeAnswer:
    """Collects an answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._pieces: list[str] = []
        self._completion = b""

    async def take(self, event: _Event) -> None:
        if isinstance(event, ChatDelta):
            self._pieces.append(event.text)
        elif isinstance(event, ChatFinished):
            self._completion = self._answer.completion("".join(self._pieces), event)

    def response(self) -> Response:
        """Return the response; the answer has finished."""
        return Response(self._completion, media_type="application/json")


class _StreamedAnswer:
    """Sends an answer as it comes. The headers wait for the first event, which may be a failure."""

    def __init__(self, answer: Answer, stream: EventStream) -> None:
        self._answer = answer
        self._stream = stream

    async def take(self, event: _Event) -> None:
        if not self._stream.started:
            await self._stream.start()
            await self._stream.send(self._answer.first_chunk())
        if isinstance(event, ChatLoading):
            where = f"{event.model} on {event.host} with {event.engine}"
            await self._stream.comment(f"loading {where}, {event.fraction:.0%}")
        elif isinstance(event, ChatProgress):
            await self._stream.comment(f"prompt {event.done}/{event.total}")
        elif isinstance(event, ChatDelta) and event.text:
            await self._stream.send(self._answer.text_chunk(event.text))
        elif isinstance(event, ChatFinished):
            await self._stream.send(self._answer.final_chunk(event))
            if self._answer.include_usage:
                await self._stream.send(self._answer.usage_chunk(event))
            await self._stream.send(b"[DONE]")
