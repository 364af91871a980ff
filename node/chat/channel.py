"""Running the producer of a request's events next to whoever reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio

from protocols.chat import ChatEvent

__all__ = ["Emit", "events_of"]

Emit: TypeAlias = Callable[[ChatEvent], Awaitable[None]]

_BUFFERED: Final = 64
"""Events that may wait for a slow reader before the producer does."""


@asynccontextmanager
async def events_of(
    produce: Callable[[Emit], Awaitable[None]],
) -> AsyncIterator[AsyncIterator[ChatEvent]]:
    """Run `produce` and yield an iterator over what it emits.

    Leaving the context cancels `produce` and waits until it has cleaned up.
    """
    send, receive = trio.open_memory_channel[ChatEvent](_BUFFERED)

    async def run() -> None:
        async with send:
            await produce(send.send)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield receive
        finally:
            nursery.cancel_scope.cancel()
