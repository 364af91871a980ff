"""Stream handlers that may fail without taking the host along.

py-libp2p runs handlers in the connection's nursery: an exception that leaves one ends the host.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from libp2p.abc import INetStream
from libp2p.custom_types import StreamHandlerFn
from loguru import logger

from node.transport.errors import TransportError
from node.transport.streams import ByteStream

__all__ = ["byte_stream_handler", "guarded"]


def guarded(handler: StreamHandlerFn) -> StreamHandlerFn:
    """Return `handler` wrapped so that what it raises is logged and its stream reset."""

    async def guard(stream: INetStream) -> None:
        try:
            await handler(stream)
        except Exception:
            logger.exception(
                "the handler of {} from {} failed; its stream is reset",
                stream.get_protocol(),
                stream.muxed_conn.peer_id,
            )
            await ByteStream(stream).reset()

    return guard


def byte_stream_handler(handler: Callable[[ByteStream], Awaitable[None]]) -> StreamHandlerFn:
    """Return a handler for `IHost.set_stream_handler` that is given a `ByteStream`.

    The stream is closed when `handler` returns. When it raises or is cancelled the stream is reset,
    so that the peer does not take what it got for all there was. Losing the stream is nothing to
    shout about and is logged for debugging; anything else is logged as an error.
    """

    async def handle(net_stream: INetStream) -> None:
        stream = ByteStream(net_stream)
        try:
            await handler(stream)
        except TransportError as error:
            logger.debug("{} from {} ended: {}", stream.protocol, stream.peer_id, error)
            await stream.reset()
        except BaseException:
            await stream.reset()
            raise
        else:
            await stream.close()

    return guarded(handle)
