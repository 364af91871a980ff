"""A response of server-sent events.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from typing import Final

import trio
from starlette.types import Receive, Scope, Send

from node.http.errors import ApiError, error_body, error_response

__all__ = ["EventStream"]


class EventStream:
    """A stream that may still turn into an error response, as long as it has not started.

    Tasks may send at the same time; each event goes out whole.
    """

    _HEADERS: Final = (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        # Proxies that buffer would hold back tokens.
        (b"x-accel-buffering", b"no"),
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._asgi = scope, receive, send
        self._send = send
        self._lock = trio.Lock()
        self._started = trio.Event()
        self._written_at = 0.0

    @property
    def started(self) -> bool:
        """Whether the headers, and status 200 with them, have gone out."""
        return self._started.is_set()

    async def start(self) -> None:
        """Send the headers."""
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": list(self._HEADERS)}
        )
        self._written_at = trio.current_time()
        self._started.set()

    async def send(self, payload: bytes) -> None:
        """Send an event. The payload holds no line break, as msgspec's JSON does not."""
        await self._write(b"data: " + payload + b"\n\n")

    async def comment(self, text: str) -> None:
        """Send a comment, which clients pass over unless they know it."""
        await self._write(f": {text}\n\n".encode())

    async def keep_alive(self, interval_s: float) -> None:
        """Send a comment whenever nothing has been sent for so long, until cancelled."""
        await self._started.wait()
        while True:
            await trio.sleep_until(self._written_at + interval_s)
            if trio.current_time() >= self._written_at + interval_s:
                await self.comment("keep-alive")

    async def fail(self, error: ApiError) -> None:
        """End with an error: a response of its own before the start, the last event after it."""
        if not self.started:
            await error_response(error)(*self._asgi)
            return
        await self.send(error_body(error))
        await self.end()

    async def end(self) -> None:
        """End the response."""
        await self._write(b"", more=False)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        async with self._lock:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
            self._written_at = trio.current_time()
