"""A prefill by another node, over `/kv-prefill/1`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from node.prefill.source import Buffers, PrivateBuffers
from node.transport.errors import ConnectionLost, StreamClosed, TransportError
from node.transport.streams import ByteStream
from protocols.cache import CacheLayout
from protocols.errors import ProtocolError
from protocols.kv_prefill.client import ChunkArrived, Client, Event, TransferFailed
from protocols.kv_prefill.coverage import Coverage
from protocols.kv_prefill.messages import PROTOCOL_ID, Request

__all__ = ["OpenStream", "RemotePrefill", "prefill_there"]

OpenStream: TypeAlias = Callable[[str, str], Awaitable[ByteStream]]
"""Opens a stream to a peer id for a protocol; raises `PeerUnreachable`."""


class RemotePrefill:
    """Reads the events of a `PrefillSource` from a stream.

    Args:
        stream: where they come from.
        client: knows what may come.
        buffers: memory for payloads.
    """

    def __init__(self, stream: ByteStream, client: Client, buffers: Buffers | None = None) -> None:
        self._stream = stream
        self._client = client
        self._buffers = buffers or PrivateBuffers()
        self._broken = False
        self.link_lost = False
        """Whether it was the connection that ended, and not the node's word."""
        self.violation = ""
        """What the node said that none may; empty as long as it kept to the protocol."""

    @property
    def coverage(self) -> Coverage:
        """See `PrefillSource.coverage`."""
        return self._client.coverage

    @property
    def done(self) -> bool:
        """Whether the stream has come to its end as it should."""
        return self._client.wanted == 0 and not self._broken

    async def next_event(self) -> Event:
        """See `PrefillSource.next_event`. A broken stream or protocol is a `TransferFailed`."""
        client = self._client
        try:
            while True:
                event = client.feed(await self._read(client.wanted))
                if event is not None:
                    return event
        except StreamClosed:
            try:
                return client.eof() or TransferFailed("the stream ended twice", retryable=False)
            except ProtocolError as error:
                return self._break_off(str(error), retryable=True)
        except TransportError as error:
            self.link_lost = isinstance(error, ConnectionLost)
            return self._break_off(f"{error}; {self._progress()}", retryable=True)
        except ProtocolError as error:
            self.violation = str(error)
            return self._break_off(f"it broke the protocol: {error}", retryable=False)

    async def release(self, chunk: ChunkArrived) -> None:
        """See `PrefillSource.release`."""
        self._buffers.give_back(chunk.payload)

    def _break_off(self, reason: str, *, retryable: bool) -> TransferFailed:
        self._broken = True
        return TransferFailed(reason, retryable)

    async def _read(self, size: int) -> memoryview:
        if self._client.incoming is None:
            message = memoryview(bytearray(size))
            await self._stream.read_exactly_into(message)
            return message
        payload = await self._buffers.take(size)
        try:
            await self._stream.read_exactly_into(payload)
        except BaseException:
            self._buffers.give_back(payload)
            raise
        return payload

    def _progress(self) -> str:
        return f"{self.coverage.covered_tokens} tokens had arrived complete"


@asynccontextmanager
async def prefill_there(
    open_stream: OpenStream,
    peer_id: str,
    request: Request,
    layout: CacheLayout,
    buffers: Buffers | None = None,
) -> AsyncIterator[RemotePrefill]:
    """Ask another node for a prefill; leaving the context early cancels it there.

    Args:
        open_stream: opens a stream to a peer.
        peer_id: whom to ask.
        request: what for.
        layout: of the engine that will be injected.
        buffers: memory for what comes; new memory for each payload when left out.

    Raises:
        PeerUnreachable: there is no way to it.
        TransportError: the stream broke before the request had been sent.
    """
    stream = await open_stream(peer_id, PROTOCOL_ID)
    source: RemotePrefill | None = None
    try:
        client = Client(request, layout)
        await stream.send(client.request_frame)
        source = RemotePrefill(stream, client, buffers)
        yield source
    finally:
        # A reset reaches the other side at once, where a close would let it go on sending.
        if source is not None and source.done:
            await stream.close()
        else:
            await stream.reset()
