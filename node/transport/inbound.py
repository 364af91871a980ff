"""Streams that peers open: bounded in number, negotiated in bounded time, and served.

In place of py-libp2p's own handler, which has none of these bounds.
"""

from __future__ import annotations

from typing import Final

import trio
from libp2p.abc import INetStream
from libp2p.custom_types import StreamHandlerFn
from libp2p.io.exceptions import IOException, MessageTooLarge
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectCommunicatorError, MultiselectError
from libp2p.protocol_muxer.multiselect import Multiselect
from loguru import logger

from node.transport.conduct import Conduct, Offence
from node.transport.negotiation import NEGOTIATION_S, LimitedCommunicator

__all__ = ["MAX_NEGOTIATING", "MAX_STREAMS", "InboundStreams"]

MAX_STREAMS: Final = 1024
"""Of one peer, over all its connections."""
MAX_NEGOTIATING: Final = 64
"""Of one peer, for which it has not said yet what they are for; more wait for their turn."""


class InboundStreams:
    """Serves the streams that peers open.

    Args:
        multiselect: knows the protocols and their handlers.
        conduct: told of those who talk nonsense.
    """

    def __init__(self, multiselect: Multiselect, conduct: Conduct) -> None:
        self._multiselect = multiselect
        self._conduct = conduct
        self._peers: dict[ID, _Peer] = {}

    async def serve(self, stream: INetStream) -> None:
        """Serve one stream to its end."""
        peer_id = stream.muxed_conn.peer_id
        peer = self._peers.setdefault(peer_id, _Peer())
        if peer.streams >= MAX_STREAMS:
            logger.debug("{} has {} streams open: refused another", peer_id, peer.streams)
            await stream.reset()
            return
        peer.streams += 1
        try:
            async with peer.turns:
                handler = await self._negotiate(stream, peer_id)
            if handler is not None:
                await handler(stream)
        finally:
            peer.streams -= 1
            if not peer.streams:
                self._peers.pop(peer_id, None)

    async def _negotiate(self, stream: INetStream, peer: ID) -> StreamHandlerFn | None:
        try:
            protocol, handler = await self._multiselect.negotiate(
                LimitedCommunicator(stream), NEGOTIATION_S
            )
        except MultiselectError as error:
            self._judge(peer, error)
            with trio.move_on_after(1, shield=True):
                await stream.reset()
            return None
        if protocol is None or handler is None:
            await stream.reset()
            return None
        stream.set_protocol(protocol)
        return handler

    def _judge(self, peer: ID, error: MultiselectError) -> None:
        """Tell nonsense from silence, and both from a stream that was given up or cut off."""
        cause = error.__cause__
        if cause is None and isinstance(error.__context__, trio.TooSlowError):
            self._conduct.report(peer, Offence.IDLE, "it opens streams and does not say what for")
        elif cause is None or not _was_cut_off(cause):
            what = f"it negotiates nonsense: {cause or error}"
            self._conduct.report(peer, Offence.MALFORMED, what)
        else:
            logger.debug("a stream of {} ended before it was negotiated: {}", peer, cause)


def _was_cut_off(error: BaseException) -> bool:
    """Whether the stream's end is what was wrong."""
    if not isinstance(error, MultiselectCommunicatorError):
        return False
    return isinstance(error.__cause__, IOException) and not isinstance(
        error.__cause__, MessageTooLarge
    )


class _Peer:
    def __init__(self) -> None:
        self.streams = 0
        self.turns = trio.CapacityLimiter(MAX_NEGOTIATING)
