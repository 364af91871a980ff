"""A prefill by an engine of this node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from node.errors import EngineDied, EngineRequestFailed
from node.instances.connection import RequestHandle
from node.instances.instance import Instance
from protocols.engine import (
    Acknowledge,
    Failed,
    Prefill,
    PrefillChunk,
    PrefillFinished,
    PrefillStarted,
)
from protocols.kv_prefill.client import (
    Accepted,
    ChunkArrived,
    Completed,
    Event,
    Refused,
    TransferFailed,
)
from protocols.kv_prefill.coverage import Coverage
from protocols.kv_prefill.messages import (
    Accept,
    Codec,
    Done,
    Refuse,
    RefuseCode,
    Request,
)

__all__ = ["EnginePrefill", "measure_prefill", "prefill_here"]


class EnginePrefill:
    """Turns what an engine says about a prefill into the events of a `PrefillSource`.

    Args:
        handle: a request of `instance` on which `Prefill` has been sent.
        instance: whose engine it is.
        request: what was asked for.
    """

    def __init__(self, handle: RequestHandle, instance: Instance, request: Request) -> None:
        capabilities = instance.capabilities
        if capabilities is None:
            raise EngineDied(f"{instance.id} is not loaded")
        self.layout = capabilities.layout
        self.coverage = Coverage(self.layout, request.start, request.end)
        self.computed = 0
        """Tokens that the engine computed; known at the end."""
        self._handle = handle
        self._instance = instance
        self._accepted = False

    async def next_event(self) -> Event:
        """See `PrefillSource.next_event`."""
        try:
            while True:
                message, payload = await self._handle.receive()
                match message:
                    case PrefillStarted():
                        self._accepted = True
                        return Accepted(self._accept(message))
                    case PrefillChunk():
                        self.coverage.add(message.chunk)
                        return ChunkArrived(message.chunk, payload)
                    case PrefillFinished():
                        return self._finished(message)
                    case Failed():
                        return self._failed(message)
                    case _:
                        continue
        except EngineDied as error:
            if self._accepted:
                return TransferFailed(error.problem, retryable=True)
            return Refused(Refuse("not_ready", error.problem, retryable=True))

    async def release(self, chunk: ChunkArrived) -> None:
        """See `PrefillSource.release`. That the engine has died is for `next_event` to tell."""
        with suppress(EngineDied):
            acknowledge = Acknowledge(request=self._handle.id, size=chunk.chunk.size)
            await self._handle.send(acknowledge, chunk.payload)

    def _accept(self, message: PrefillStarted) -> Accept:
        return Accept(
            layout=self.layout,
            epoch=self._instance.epoch,
            cached=message.cached,
            codec=message.codec,
            tokens_per_s=self._instance.prefill_rate,
        )

    def _finished(self, message: PrefillFinished) -> Event:
        self.computed = message.computed
        self._instance.measured_prefill(message.computed, message.timings.compute_s)
        if not self.coverage.complete:
            missing = self.coverage.describe_missing()
            return TransferFailed(f"the engine was done, but {missing}", retryable=False)
        return Completed(
            Done(
                chunks=message.chunks,
                raw_bytes=message.raw_bytes,
                sent_bytes=message.sent_bytes,
                timings=message.timings,
            )
        )

    def _failed(self, message: Failed) -> Event:
        if self._accepted:
            return TransferFailed(message.reason, retryable=message.code == "engine")
        codes: dict[str, RefuseCode] = {
            "too_long": "too_long",
            "bad_request": "bad_request",
            "unsupported": "layout_mismatch",
        }
        code = codes.get(message.code, "busy")
        return Refused(Refuse(code, message.reason, retryable=code == "busy"))


@asynccontextmanager
async def prefill_here(instance: Instance, request: Request) -> AsyncIterator[EnginePrefill]:
    """Prefill on an engine of this node; leaving the context cancels what is not done.

    Raises:
        InstanceNotReady: the model is not loaded.
        EngineDied: the engine process died before it was told.
    """
    codec: Codec = request.codecs[0] if request.codecs else "raw"
    async with instance.request(request.id) as handle:
        await handle.send(
            Prefill(
                request=handle.id,
                tokens=request.tokens,
                start=request.start,
                end=request.end,
                codec=codec,
            )
        )
        yield EnginePrefill(handle, instance, request)


async def measure_prefill(instance: Instance, request: str, tokens: bytes, end: int) -> float:
    """Return the seconds that the engine alone needs for `tokens[:end]`.

    Nothing is handed out, and no prefix cache is read.

    Raises:
        InstanceNotReady: the model is not loaded.
        EngineDied: the engine process died.
        EngineRequestFailed: the engine could not do it.
    """
    async with instance.request(request) as handle:
        await handle.send(
            Prefill(
                request=handle.id,
                tokens=tokens,
                start=0,
                end=end,
                codec="raw",
                deliver=False,
                reuse=False,
            )
        )
        while True:
            message = (await handle.receive()).message
            match message:
                case PrefillFinished():
                    return message.timings.queue_s + message.timings.compute_s
                case Failed():
                    raise EngineRequestFailed(message.code, message.reason)
                case _:
                    continue
