"""Serves `/kv-prefill/1` with the engines of this node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import trio
from loguru import logger

from node.errors import EngineDied, InstanceNotReady
from node.instances.instance import Instance
from node.prefill.engine import EnginePrefill, prefill_here
from node.prefill.outlet import Outlet, Outlets
from node.transport.conduct import Conduct, Offence
from node.transport.errors import TransportError
from node.transport.streams import ByteStream
from protocols.cache import CacheLayout
from protocols.errors import ProtocolError
from protocols.kv_prefill.client import (
    Accepted,
    ChunkArrived,
    Completed,
    Refused,
    TransferFailed,
)
from protocols.kv_prefill.messages import PROTOCOL_ID, Failed, Refuse, Request
from protocols.kv_prefill.server import Server

__all__ = ["PrefillService"]

_Key: TypeAlias = tuple[str, str, bytes]
"""Of a request: who asks, its id, and the hash of its tokens."""

REQUEST_TIMEOUT_S: Final = 10.0
"""For a request to arrive whole, once its stream is open."""
SEND_TIMEOUT_S: Final = 20.0
"""For one chunk to leave; a receiver slower than that holds up an engine for nothing."""


class PrefillService:
    """Answers requests for prefill, one stream each.

    Args:
        find: returns a ready prefill instance of a model, or `None`.
        conduct: told of clients that send nonsense.
        overlap: send chunks while later ones are computed; without, everything is computed first,
            which is of use only to measure what overlap is worth.
        interface_of: says which interface a stream leaves by; transfers over one share it.
    """

    def __init__(
        self,
        find: Callable[[str], Instance | None],
        conduct: Conduct,
        *,
        overlap: bool = True,
        interface_of: Callable[[ByteStream], str] = lambda _: "",
    ) -> None:
        self._find = find
        self._conduct = conduct
        self._overlap = overlap
        self._interface_of = interface_of
        self._outlets = Outlets()
        self._running: dict[_Key, trio.CancelScope] = {}

    async def serve(self, stream: ByteStream) -> None:
        """Serve one stream to its end.

        Raises:
            TransportError: the client left, or the connection is gone.
            ProtocolError: the client sent no request.
        """
        server = Server()
        request = await self._read_request(stream, server)
        if request is None:
            return
        instance = self._find(request.model)
        refusal = _refusal(instance, request)
        if refusal is not None or instance is None:
            logger.info("refused prefill {}: {}", request.id, refusal)
            await stream.send(server.refuse(refusal or Refuse("unknown_model", request.model)))
            return
        with (
            trio.move_on_after(request.deadline_ms / 1000) as scope,
            self._replacing((str(stream.peer_id), request.id, request.tokens_hash), scope),
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_closed, stream, server, nursery.cancel_scope)
                await self._serve_request(stream, server, request, instance)
                nursery.cancel_scope.cancel()
        if not server.finished:
            why = "its deadline has passed, or it was asked for again"
            why = why if scope.cancelled_caught else "the client left"
            logger.info("prefill {} was given up: {}", request.id, why)
            await stream.reset()

    @contextmanager
    def _replacing(self, key: _Key, scope: trio.CancelScope) -> Iterator[None]:
        """Give up the same request if it is still served.

        Who asks again has lost the connection, which may not have been noticed here yet.
        """
        before = self._running.get(key)
        if before is not None:
            before.cancel()
        self._running[key] = scope
        try:
            yield
        finally:
            if self._running.get(key) is scope:
                del self._running[key]

    async def _read_request(self, stream: ByteStream, server: Server) -> Request | None:
        try:
            with trio.fail_after(REQUEST_TIMEOUT_S):
                while server.request is None:
                    server.feed(await stream.read_exactly(server.wanted))
        except trio.TooSlowError:
            logger.warning("{} opened a prefill stream and sent no request", stream.peer_id)
            await stream.reset()
        except ProtocolError as error:
            logger.warning("{} sent no valid prefill request: {}", stream.peer_id, error)
            self._conduct.report(stream.peer_id, Offence.MALFORMED, f"{PROTOCOL_ID}: {error}")
            await stream.send(server.refuse(Refuse("bad_request", str(error))))
        return server.request

    async def _serve_request(
        self, stream: ByteStream, server: Server, request: Request, instance: Instance
    ) -> None:
        try:
            try:
                interface = self._interface_of(stream)
                deadline = trio.current_time() + request.deadline_ms / 1000
                async with prefill_here(instance, request) as source:
                    size = _size(source.layout, request)
                    with self._outlets.transfer(interface, deadline, size) as outlet:
                        await self._pass_on(stream, server, source, outlet)
            except (InstanceNotReady, EngineDied) as error:
                refusal = Refuse("not_ready", error.problem, retryable=True)
                await stream.send(server.refuse(refusal))
        except TransportError as error:
            logger.info("prefill {} ended early: {}", request.id, error)

    async def _pass_on(
        self, stream: ByteStream, server: Server, source: EnginePrefill, outlet: Outlet
    ) -> None:
        held: list[ChunkArrived] = []
        while True:
            event = await source.next_event()
            match event:
                case Accepted():
                    await stream.send(server.accept(event.accept))
                case ChunkArrived():
                    if self._overlap:
                        await _send_chunk(outlet, stream, server, event)
                    else:
                        held.append(ChunkArrived(event.chunk, memoryview(bytes(event.payload))))
                    await source.release(event)
                case Completed():
                    for chunk in held:
                        await _send_chunk(outlet, stream, server, chunk)
                    if event.done is not None:
                        await stream.send(server.done(event.done))
                    return
                case Refused():
                    await stream.send(server.refuse(event.refuse))
                    return
                case TransferFailed():
                    await stream.send(server.failed(Failed(event.reason, event.retryable)))
                    return


async def _send_chunk(
    outlet: Outlet, stream: ByteStream, server: Server, event: ChunkArrived
) -> None:
    try:
        with trio.fail_after(SEND_TIMEOUT_S):
            await outlet.send(stream, server.chunk(event.chunk), event.payload)
    except trio.TooSlowError as error:
        raise TransportError(f"the receiver took no chunk for {SEND_TIMEOUT_S:.0f} s") from error


async def _cancel_when_closed(stream: ByteStream, server: Server, scope: trio.CancelScope) -> None:
    """Cancel `scope` when the client closes the stream, which says that it wants no more."""
    try:
        await stream.read_exactly(1)
        logger.warning("{} sent bytes after its prefill request", stream.peer_id)
    except TransportError:
        server.eof()
    scope.cancel()


def _size(layout: CacheLayout, request: Request) -> int:
    """Return the raw bytes of what a request asks for, at most."""
    tokens = request.end - request.start
    return sum(layout.nbytes(index, tokens) for index in range(len(layout.layers)))


def _refusal(instance: Instance | None, request: Request) -> Refuse | None:
    if instance is None or instance.capabilities is None:
        return Refuse(
            "unknown_model", f"no prefill engine of {request.model} is ready here", retryable=True
        )
    ours = instance.capabilities.layout.fingerprint
    if ours != request.fingerprint:
        return Refuse(
            "layout_mismatch",
            f"the cache of {request.model} here has the fingerprint {ours}, "
            f"not {request.fingerprint}: the checkpoints differ in shape, rope or vocabulary",
        )
    if request.end > instance.capabilities.max_context:
        return Refuse(
            "too_long",
            f"{request.end} tokens, over the {instance.capabilities.max_context} that fit here",
        )
    if instance.capabilities.layout.dtype not in request.dtypes:
        return Refuse("layout_mismatch", f"the cache here is {instance.capabilities.layout.dtype}")
    return None
