"""The HTTP API served for real on the loopback address, beside tests that are not async."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from node.http.app import create_app
from node.http.server import serve
from tests.support.fake_backend import FakeBackend


@contextmanager
def live_api(backend: FakeBackend, port: int = 0) -> Iterator[str]:
    """Serve the API of `backend` in a thread; yields host:port."""
    started: queue.Queue[tuple[str, trio.lowlevel.TrioToken, trio.CancelScope]] = queue.Queue()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            host, bound = await nursery.start(serve, create_app(backend), "127.0.0.1", port)
            token = trio.lowlevel.current_trio_token()
            started.put((f"{host}:{bound}", token, nursery.cancel_scope))

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    api, token, scope = started.get(timeout=10)
    try:
        yield api
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(10)
