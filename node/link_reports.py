"""Tells other nodes of this node's links, and asks them for theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

import msgspec
import trio
from loguru import logger

from node.errors import PeerUnreachable
from node.messages import read_message, write_message
from node.transport.errors import TransportError
from node.transport.streams import ByteStream
from protocols.errors import Malformed, ProtocolError
from protocols.framing import FrameReader
from protocols.status import MAX_REPORT, PROTOCOL_ID, LinkReport, LinkStatus

__all__ = ["LinkReports", "Reports"]

ANSWER_S: Final = 1.0
"""For a node to tell of its links; whoever looks at the cluster waits no longer than that."""
FRESH_S: Final = 0.5
"""Reports of this age are good enough: however many look, the others are not asked more often."""

Reports: TypeAlias = dict[str, tuple[LinkStatus, ...]]
"""Links by the peer id of the node that told of them."""


class LinkReports:
    """Serves and asks `/baton/links/1`.

    Args:
        own: returns this node's links.
        is_member: says whether a peer may be told of them.
        open_stream: opens a stream of a protocol to a peer.
    """

    def __init__(
        self,
        own: Callable[[], tuple[LinkStatus, ...]],
        is_member: Callable[[str], bool],
        open_stream: Callable[[str, str], Awaitable[ByteStream]],
    ) -> None:
        self._own = own
        self._is_member = is_member
        self._open_stream = open_stream
        self._asking = trio.Lock()
        self._reports: Reports = {}
        self._asked_at = float("-inf")

    async def serve(self, stream: ByteStream) -> None:
        """Answer one stream.

        Raises:
            Malformed: the peer is none of this cluster.
            TransportError: the stream broke.
        """
        peer_id = stream.peer_id.to_base58()
        if not self._is_member(peer_id):
            raise Malformed(f"{peer_id} asks for links and is no member")
        with trio.move_on_after(ANSWER_S) as scope:
            await write_message(stream, LinkReport(self._own()))
        if scope.cancelled_caught:
            logger.debug("{} asked for our links and does not read them", peer_id)
            await stream.reset()

    async def ask(self, peers: Iterable[str]) -> Reports:
        """Return the links of those of `peers` that answer in time, all asked at once."""
        async with self._asking:
            if trio.current_time() - self._asked_at > FRESH_S:
                reports: Reports = {}
                async with trio.open_nursery() as nursery:
                    for peer_id in peers:
                        nursery.start_soon(self._ask, peer_id, reports)
                self._reports, self._asked_at = reports, trio.current_time()
            return self._reports

    async def _ask(self, peer_id: str, reports: Reports) -> None:
        try:
            with trio.fail_after(ANSWER_S):
                reports[peer_id] = await self._read(peer_id)
        except (PeerUnreachable, TransportError, ProtocolError, trio.TooSlowError) as error:
            logger.debug("{} does not tell of its links: {!r}", peer_id, error)

    async def _read(self, peer_id: str) -> tuple[LinkStatus, ...]:
        stream = await self._open_stream(peer_id, PROTOCOL_ID)
        try:
            decoder = msgspec.msgpack.Decoder(LinkReport)
            report = await read_message(stream, FrameReader(decoder, max_message=MAX_REPORT))
        finally:
            await stream.reset()
        if any(link.source != peer_id for link in report.links):
            raise Malformed(f"{peer_id} tells of links that are not its own")
        return report.links
