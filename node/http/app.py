"""The routes of the HTTP API."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from node.http.backend import Backend, RequestFailed
from node.http.chat import ChatEndpoint
from node.http.errors import (
    ApiError,
    error_response,
    from_failure,
    on_api_error,
    on_http_exception,
    on_unexpected,
)
from node.http.instances import instance_routes
from node.http.parsing import parse_measure
from node.http.requests import MAX_BODY_BYTES, cancelled_on_disconnect, read_body
from node.http.responses import model_list, model_object
from protocols.chat import PrefillPolicy

__all__ = ["create_app"]

_KEEP_ALIVE_S: Final = 10.0


def create_app(
    backend: Backend,
    *,
    default_prefill: PrefillPolicy = "auto",
    max_body_bytes: int = MAX_BODY_BYTES,
    keep_alive_s: float = _KEEP_ALIVE_S,
) -> Starlette:
    """Make the ASGI application.

    Args:
        backend: the node.
        default_prefill: where to prefill the requests that do not say.
        max_body_bytes: larger bodies are refused.
        keep_alive_s: a stream that has been silent for so long gets a comment.
    """
    chat = ChatEndpoint(
        backend,
        default_prefill=default_prefill,
        max_body_bytes=max_body_bytes,
        keep_alive_s=keep_alive_s,
    )
    views = _Views(backend)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", views.models, methods=["GET"]),
            Route("/v1/models/{model:path}", views.model, methods=["GET"]),
            Route("/v1/cluster", views.cluster, methods=["GET"]),
            Route("/v1/prefill/measure", _Measure(backend, max_body_bytes), methods=["POST"]),
            Route("/health", views.health, methods=["GET"]),
            *instance_routes(backend, max_body_bytes),
        ],
        exception_handlers={
            ApiError: on_api_error,
            HTTPException: on_http_exception,
            Exception: on_unexpected,
        },
    )
    app.router.redirect_slashes = False
    return app


class _Views:
    """What is answered at once, or (the cluster) within a second."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def models(self, request: Request) -> Response:
        return _json(model_list(self._backend.models()))

    async def model(self, request: Request) -> Response:
        wanted = request.path_params["model"]
        for info in self._backend.models():
            if info.id == wanted:
                return _json(model_object(info))
        raise ApiError(
            f"There is no model `{wanted}` in the cluster.",
            status=HTTPStatus.NOT_FOUND,
            param="model",
            code="model_not_found",
        )

    async def cluster(self, request: Request) -> Response:
        document = await self._backend.cluster()
        return _json(document if isinstance(document, bytes) else msgspec.json.encode(document))

    async def health(self, request: Request) -> Response:
        """Answer 503 while starting: whoever waits for readiness need not read the body."""
        health = self._backend.health()
        starting = health.status == "starting"
        status = HTTPStatus.SERVICE_UNAVAILABLE if starting else HTTPStatus.OK
        return _json(msgspec.json.encode(health), status)


class _Measure:
    """`POST /v1/prefill/measure`: what the prefill engine alone needs for a prompt."""

    def __init__(self, backend: Backend, max_body_bytes: int) -> None:
        self._backend = backend
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = parse_measure(await read_body(Request(scope, receive), self._max_body_bytes))
        except ClientDisconnect:
            return
        async with cancelled_on_disconnect(receive):
            try:
                report = await self._backend.measure_prefill(
                    body.to_request(f"measure-{uuid.uuid4().hex}")
                )
            except RequestFailed as error:
                response = error_response(from_failure(error.failure))
            else:
                response = _json(msgspec.json.encode(report))
            await response(scope, receive, send)


def _json(body: bytes, status: int = HTTPStatus.OK) -> Response:
    return Response(body, status_code=status, media_type="application/json")
