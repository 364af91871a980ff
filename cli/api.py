"""Talking to a node's HTTP API from the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import click
import httpx
import msgspec

from node.config import DEFAULT_API, ConfigError, parse_api

__all__ = ["ApiError", "NodeUnreachable", "api_option", "check", "connect", "get", "sse_events"]

_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 30.0
_F = TypeVar("_F", bound=Callable[..., object])


class NodeUnreachable(click.ClickException):
    """Nothing that is a node answers at the address."""

    def __init__(self, api: str) -> None:
        super().__init__(f"no Baton node answers at {api}; start one with `baton up`")


class ApiError(click.ClickException):
    """The node answered with an error object, or with something that it should not."""


class _ErrorObject(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _ErrorObject


def api_option(command: _F) -> _F:
    """Add `--api HOST:PORT`, which `BATON_API` sets too."""
    return click.option(
        "--api",
        metavar="HOST:PORT",
        envvar="BATON_API",
        default=DEFAULT_API,
        show_default=True,
        callback=_check_api,
        help="Where the node's HTTP API listens.",
    )(command)


@contextmanager
def connect(api: str) -> Iterator[httpx.Client]:
    """Open a client whose failures are those of this module.

    Raises:
        NodeUnreachable: no connection, or it broke.
    """
    timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
    # A proxy of the environment is not meant for one's own machines.
    with httpx.Client(base_url=f"http://{api}", timeout=timeout, trust_env=False) as client:
        try:
            yield client
        except httpx.TransportError as error:
            raise NodeUnreachable(api) from error


def get(client: httpx.Client, path: str, *, timeout_s: float = _ANSWER_S) -> bytes:
    """Return the body at `path`.

    Args:
        client: of `connect`.
        path: at the node.
        timeout_s: for each part of the answer.

    Raises:
        ApiError: the status is not one of success.
    """
    response = client.get(path, timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S))
    check(response)
    return response.content


def check(response: httpx.Response) -> None:
    """Raise if the response, whose body has been read, is an error.

    Raises:
        ApiError: with the message of the error object, or the status where there is none.
    """
    if response.is_success:
        return
    try:
        message = msgspec.json.decode(response.content, type=_ErrorBody).error.message
    except msgspec.DecodeError:
        message = f"{response.url} answered with status {response.status_code}"
    raise ApiError(message)


def sse_events(
    pieces: Iterable[bytes], on_comment: Callable[[str], None] = lambda comment: None
) -> Iterator[bytes]:
    """Return the data of server-sent events of one line each, from a body's pieces.

    Comments go to `on_comment`. Not by `httpx.Response.iter_lines`, which also splits at line
    breaks that only Unicode knows, and those may be in an answer.
    """
    pending = b""
    for piece in pieces:
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield line.removeprefix(b"data: ")
            elif line.startswith(b": "):
                on_comment(line.removeprefix(b": ").decode(errors="replace"))


def _check_api(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        parse_api(value)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    return value
