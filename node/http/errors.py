"""Error objects in OpenAI's form, and what turns exceptions into them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from protocols.chat import ChatFailed, ErrorType

__all__ = [
    "INTERNAL_ERROR",
    "RETRY_AFTER_S",
    "ApiError",
    "error_body",
    "error_response",
    "from_failure",
    "on_api_error",
    "on_http_exception",
    "on_unexpected",
]

RETRY_AFTER_S: Final = 5
"""What a client is told to wait for an engine that is loading or restarting."""

_TYPES: Final[dict[ErrorType, str]] = {
    "invalid_request_error": "invalid_request_error",
    # OpenAI's reference answers an unknown model with this type, and `model_not_found` as code.
    "not_found_error": "invalid_request_error",
    "server_error": "server_error",
    "unavailable_error": "service_unavailable_error",
}


class _ErrorObject(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorObject


class ApiError(Exception):
    """A request that is answered with an error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
        type_: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type_
        self.param = param
        self.code = code


INTERNAL_ERROR: Final = ApiError(
    "The node failed to handle the request; its log says why.",
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
    type_="server_error",
)


def from_failure(failure: ChatFailed) -> ApiError:
    """Return the error that says what a `ChatFailed` says."""
    return ApiError(
        failure.message,
        status=failure.status,
        type_=_TYPES[failure.kind],
        param=failure.param,
        code=failure.code,
    )


def error_body(error: ApiError) -> bytes:
    """Return the error object as JSON."""
    return msgspec.json.encode(
        _ErrorBody(_ErrorObject(error.message, error.type, error.param, error.code))
    )


def error_response(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    """Return the response that carries an error object; of a 503, with the time to try again."""
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = {"Retry-After": str(RETRY_AFTER_S), **(headers or {})}
    return Response(
        error_body(error), status_code=error.status, headers=headers, media_type="application/json"
    )


async def on_api_error(request: Request, error: Exception) -> Response:
    """Answer with the error object of an `ApiError`."""
    assert isinstance(error, ApiError)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer an unknown path or a wrong method, which the router raises, as OpenAI does."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    where = f"{request.method} {request.url.path}"
    if error.status_code == HTTPStatus.NOT_FOUND:
        message, code = f"There is nothing at {where}.", "unknown_url"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # The router names those of the first route of the path alone.
        allowed = ", ".join(sorted(_methods(request)))
        headers["Allow"] = allowed
        message = f"{request.url.path} does not answer {request.method}; it answers {allowed}."
        code = "method_not_allowed"
    else:
        message, code = error.detail, None
    return error_response(ApiError(message, status=error.status_code, code=code), headers)


def _methods(request: Request) -> set[str]:
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    matching = [each for each in routes if each.path_regex.match(request.url.path)]
    return {method for each in matching for method in each.methods or ()}


async def on_unexpected(request: Request, error: Exception) -> Response:
    """Answer a defect of ours. The server logs the exception, which is raised again after this."""
    return error_response(INTERNAL_ERROR)
