"""Reading a request's body within its limit, and cancelling work whose client has gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import trio
from starlette.requests import Request
from starlette.types import Receive

from node.http.errors import ApiError

__all__ = ["MAX_BODY_BYTES", "cancelled_on_disconnect", "read_body"]

MAX_BODY_BYTES: Final = 16 << 20
"""Enough for a prompt of several million tokens."""

_DRAIN_FACTOR: Final = 8
_BODY_DEADLINE_S: Final = 60.0


async def read_body(request: Request, limit: int) -> bytes:
    """Read the whole body.

    Of a body that is too large as much as is reasonable is read and dropped, so that the client
    gets to see the answer: a connection closed with bytes unread is reset.

    Raises:
        ApiError: it is larger than `limit` bytes (413), or takes too long to arrive (408).
        ClientDisconnect: the client left while sending it.
    """
    body = bytearray()
    received = 0
    try:
        with trio.fail_after(_BODY_DEADLINE_S):
            async for piece in request.stream():
                received += len(piece)
                if received <= limit:
                    body += piece
                elif received > limit * _DRAIN_FACTOR:
                    break
    except trio.TooSlowError as error:
        raise ApiError(
            f"The body did not arrive within {_BODY_DEADLINE_S:g} seconds.",
            status=HTTPStatus.REQUEST_TIMEOUT,
            code="request_timeout",
        ) from error
    if received > limit:
        raise ApiError(
            f"The body is larger than {limit} bytes.",
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="request_too_large",
        )
    return bytes(body)


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive) -> AsyncIterator[trio.Nursery]:
    """Cancel the block when the client goes; the body must have been read before.

    Yields a nursery for work that accompanies the block and is cancelled at its end.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield nursery
        nursery.cancel_scope.cancel()
