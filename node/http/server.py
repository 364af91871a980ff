"""The HTTP server: hypercorn's trio connections, accepted here.

`hypercorn.trio.serve` writes to clients inside a shielded scope, so that one client that stops
reading would hold up the end of the node for as long as it likes. Here the connections are known,
and those that outstay the grace period are shut down.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from functools import partial
from typing import Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from loguru import logger
from starlette.applications import Starlette

from node.errors import BatonError, PortInUse

__all__ = ["serve"]

_KEEP_ALIVE_S: Final = 60.0
"""How long a connection may be idle between two requests."""


async def serve(
    app: Starlette,
    host: str,
    port: int,
    *,
    shutdown: trio.Event | None = None,
    grace_s: float = 3.0,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, or until `shutdown` is set and the running requests have ended.

    Start it with `nursery.start`, which returns the address that it listens on.

    Args:
        app: the application.
        host: address or name to listen on.
        port: TCP port; 0 lets the system choose.
        shutdown: no request is accepted once it is set.
        grace_s: how long requests may go on after that.
        task_status: told (host, port).

    Raises:
        PortInUse: another program listens there.
        BatonError: the address cannot be listened on for another reason.
    """
    listeners = await _bind(host, port)
    connections = _Connections(app)
    async with trio.open_nursery() as handlers:
        try:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(
                        trio.serve_listeners,
                        connections.handle,
                        listeners,
                        handler_nursery=handlers,
                    )
                )
                address = listeners[0].socket.getsockname()
                task_status.started((address[0], address[1]))
                await (trio.Event() if shutdown is None else shutdown).wait()
                accepting.cancel_scope.cancel()
            await connections.drain(grace_s)
        finally:
            connections.abort()
            handlers.cancel_scope.cancel()


async def _bind(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        where = f"the API cannot listen on {host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"{where}, which another program uses", "choose another with --api HOST:PORT"
            ) from error
        reason = error.strerror or str(error)
        raise BatonError(
            f"{where} ({reason})", "choose an address of this machine with --api HOST:PORT"
        ) from error


class _Connections:
    """The connections that are open."""

    def __init__(self, app: Starlette) -> None:
        self._app = ASGIWrapper(app)  # pyright: ignore[reportArgumentType]
        self._config = _hypercorn_config()
        self._context = WorkerContext(max_requests=None)
        self._open: set[trio.SocketStream] = set()
        self._one_closed = trio.Event()

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection. Whatever goes wrong on it concerns no other."""
        self._open.add(stream)
        try:
            await TCPServer(
                self._app,
                self._config,
                self._context,
                ConnectionState({}),
                stream,  # pyright: ignore[reportArgumentType]
            ).run()
        except Exception:
            logger.exception("An HTTP connection failed unexpectedly and was closed")
        finally:
            self._open.discard(stream)
            self._one_closed.set()

    async def drain(self, grace_s: float) -> None:
        """Close idle connections and wait for the others, though not longer than `grace_s`."""
        await self._context.terminated.set()
        with trio.move_on_after(grace_s):
            while self._open:
                self._one_closed = trio.Event()
                await self._one_closed.wait()

    def abort(self) -> None:
        """Shut down what is still open, which wakes writers that wait for their clients."""
        for stream in self._open:
            with suppress(OSError):
                stream.socket.shutdown(trio.socket.SHUT_RDWR)


def _hypercorn_config() -> Config:
    config = Config()
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.include_server_header = False
    errors = logging.getLogger("hypercorn.error")
    errors.handlers = [_ToLoguru()]
    errors.propagate = False
    config.errorlog = errors
    return config


class _ToLoguru(logging.Handler):
    """Passes log records of the standard library on to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.opt(exception=record.exc_info).log(record.levelname, record.getMessage())
