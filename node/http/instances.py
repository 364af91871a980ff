"""`/v1/instances` and `/v1/links`: what is loaded where, and who prefills for whom."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from node.http.backend import Backend, InstanceInfo, LinkInfo, RequestFailed
from node.http.errors import ApiError, from_failure
from node.http.parsing import parse_instance, parse_link
from node.http.requests import read_body

__all__ = ["instance_routes"]


class _InstanceList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[InstanceInfo, ...]


class _LinkList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[LinkInfo, ...]


class _DeletedInstance(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["instance"] = "instance"
    deleted: Literal[True] = True


class _DeletedLink(msgspec.Struct, frozen=True, kw_only=True):
    prefill: str
    decode: str
    object: Literal["link"] = "link"
    deleted: Literal[True] = True


def instance_routes(backend: Backend, max_body_bytes: int) -> list[Route]:
    """Return the routes of instances and links."""
    views = _Views(backend, max_body_bytes)
    return [
        Route("/v1/instances", views.instances, methods=["GET"]),
        Route("/v1/instances", views.create_instance, methods=["POST"]),
        Route("/v1/instances/{id}", views.instance, methods=["GET"]),
        Route("/v1/instances/{id}", views.delete_instance, methods=["DELETE"]),
        Route("/v1/links", views.links, methods=["GET"]),
        Route("/v1/links", views.create_link, methods=["POST"]),
        Route("/v1/links", views.delete_link, methods=["DELETE"]),
    ]


class _Views:
    """Starlette's views, which go on when the client leaves: what was asked for is done."""

    def __init__(self, backend: Backend, max_body_bytes: int) -> None:
        self._backend = backend
        self._max_body_bytes = max_body_bytes

    async def instances(self, request: Request) -> Response:
        return _json(_InstanceList(data=tuple(self._backend.instances())))

    async def instance(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        for info in self._backend.instances():
            if info.id == wanted:
                return _json(info)
        raise ApiError(
            f"There is no instance `{wanted}`. `GET /v1/instances` lists those that there are.",
            status=HTTPStatus.NOT_FOUND,
            code="unknown_instance",
        )

    async def create_instance(self, request: Request) -> Response:
        body = parse_instance(await self._body(request))
        try:
            created = await self._backend.create_instance(body.to_request())
        except RequestFailed as error:
            raise from_failure(error.failure) from error
        first, *others = created.instances
        document = msgspec.to_builtins(first) | {
            "object": "instance",
            "partners": [each.id for each in others],
        }
        return _json(document, HTTPStatus.CREATED if created.new else HTTPStatus.OK)

    async def delete_instance(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        try:
            await self._backend.delete_instance(wanted)
        except RequestFailed as error:
            raise from_failure(error.failure) from error
        return _json(_DeletedInstance(id=wanted))

    async def links(self, request: Request) -> Response:
        return _json(_LinkList(data=tuple(self._backend.links())))

    async def create_link(self, request: Request) -> Response:
        body = parse_link(await self._body(request))
        try:
            link = await self._backend.create_link(body.prefill, body.decode)
        except RequestFailed as error:
            raise from_failure(error.failure) from error
        return _json(link, HTTPStatus.CREATED)

    async def delete_link(self, request: Request) -> Response:
        body = parse_link(await self._body(request))
        try:
            await self._backend.delete_link(body.prefill, body.decode)
        except RequestFailed as error:
            raise from_failure(error.failure) from error
        return _json(_DeletedLink(prefill=body.prefill, decode=body.decode))

    async def _body(self, request: Request) -> bytes:
        try:
            return await read_body(request, self._max_body_bytes)
        except ClientDisconnect as error:
            raise ApiError("The client left before the body had arrived.") from error


def _json(document: object, status: int = HTTPStatus.OK) -> Response:
    body = msgspec.json.encode(document)
    return Response(body, status_code=status, media_type="application/json")
