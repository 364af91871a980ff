"""Injecting what a prefill elsewhere sends into a decode engine, and keeping the time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
import trio
from loguru import logger

from node.instances.connection import RequestHandle
from node.prefill.source import PrefillSource
from protocols.engine import Inject, Receive
from protocols.kv_prefill.client import (
    Accepted,
    ChunkArrived,
    Completed,
    Event,
    Refused,
    TransferFailed,
)
from protocols.kv_prefill.messages import Accept, Done

__all__ = ["STALL_TIMEOUT_S", "Progress", "Transfer", "inject_all"]

Progress: TypeAlias = Callable[[int], Awaitable[None]]

STALL_TIMEOUT_S: Final = 10.0
"""Without any event for so long once it has been accepted, a prefill counts as failed."""


class Transfer(msgspec.Struct):
    """What became of one attempt at a prefill elsewhere."""

    complete: bool = False
    reason: str = ""
    """Why it is not complete."""
    link_lost: bool = False
    """Whether it is the connection that failed: the node may be reached over another."""
    route: str = ""
    """What carried it; empty on this node."""
    usable_end: int = 0
    """The prompt's cache is injected and usable up to here."""
    cached: int = 0
    """Tokens that the prefill engine's prefix cache held."""
    sent_bytes: int = 0
    raw_bytes: int = 0
    transfer_s: float = 0.0
    """From the first chunk's arrival to the last one's."""
    hidden_s: float = 0.0
    """The part of it during which the engine was still computing."""
    compute_s: float = 0.0
    codec: str | None = None


class _Clock(msgspec.Struct):
    accepted: float = 0.0
    first_chunk: float = 0.0
    last_chunk: float = 0.0
    done: Done | None = None


async def inject_all(
    source: PrefillSource,
    handle: RequestHandle,
    end: int,
    first_event_timeout_s: float,
    progress: Progress,
) -> Transfer:
    """Inject everything that `source` sends into the request of `handle`.

    Args:
        source: where the chunks come from.
        handle: the decode engine's request.
        end: of the prompt's part that is injected, by this transfer or others.
        first_event_timeout_s: how long the source may be silent before it has accepted.
        progress: told the position up to which the cache is usable, whenever that grows.

    Raises:
        EngineDied: the decode engine died.
    """
    result = Transfer(usable_end=source.coverage.start)
    clock = _Clock()
    timeout = first_event_timeout_s
    finished = False
    while not finished:
        event: Event | None = None
        with trio.move_on_after(timeout):
            event = await source.next_event()
        if event is None:
            result.reason = f"it sent nothing for {timeout:.0f} s"
            break
        finished = await _take(event, handle, end, result, clock)
        if isinstance(event, ChunkArrived):
            await source.release(event)
        timeout = STALL_TIMEOUT_S
        usable = source.coverage.usable_end
        if usable > result.usable_end:
            result.usable_end = usable
            await progress(usable)
    result.usable_end = source.coverage.usable_end
    result.transfer_s = clock.last_chunk - clock.first_chunk
    if source.coverage.complete:
        _complete(result, clock)
    return result


def _complete(result: Transfer, clock: _Clock) -> None:
    """Note that nothing is missing: that counts, not how the source has ended."""
    if result.reason:
        logger.debug("the end of a prefill went wrong, after all had come: {}", result.reason)
    result.complete, result.reason = True, ""
    # The compute time is the server's word, or else judged by when chunks came.
    waited = clock.last_chunk - clock.accepted
    result.compute_s = waited if clock.done is None else clock.done.timings.compute_s
    computed_at = clock.accepted + result.compute_s
    result.hidden_s = max(0.0, min(clock.last_chunk, computed_at) - clock.first_chunk)


async def _take(
    event: Event, handle: RequestHandle, end: int, result: Transfer, clock: _Clock
) -> bool:
    """Act on an event; return whether it was the last."""
    match event:
        case Accepted():
            clock.accepted = trio.current_time()
            await _open(event.accept, handle, end, result)
            return False
        case ChunkArrived():
            clock.last_chunk = trio.current_time()
            clock.first_chunk = clock.first_chunk or clock.last_chunk
            result.sent_bytes += event.chunk.size
            result.raw_bytes += event.chunk.raw_size
            await handle.send(Inject(request=handle.id, chunk=event.chunk), event.payload)
            return False
        case Refused():
            result.reason = event.refuse.reason
        case TransferFailed():
            result.reason = event.reason
        case Completed():
            clock.done = event.done
    return True


async def _open(accept: Accept, handle: RequestHandle, end: int, result: Transfer) -> None:
    result.cached = accept.cached
    result.codec = accept.codec
    await handle.send(Receive(request=handle.id, start=0, end=end, dtype=accept.layout.dtype))
