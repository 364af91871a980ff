"""Connections for bulk data alone, beside those that a swarm knows of.

A peer's control connection carries its heartbeats, gossip and small requests, which should not wait
behind gigabytes. So bulk goes over a connection of its own. It is made as any other is (the same
handshake, and so the same secret), but in place of `/yamux/1.0.0` its two ends agree on `PROTOCOL`,
which is the same yamux and a promise: nothing but bulk streams will be opened. Who does not know
that name says so, and is served over the control connection.
"""

from __future__ import annotations

from typing import Final

from libp2p.abc import INetStream, ISecureConn
from libp2p.custom_types import TProtocol
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID

from node.transport.conduct import Conduct
from node.transport.negotiation import LimitedSelector
from node.transport.noise import NoiseSession
from node.transport.yamux.connection import YamuxConnection
from node.transport.yamux.settings import YamuxSettings

__all__ = ["PROTOCOL", "BulkConnection", "negotiate_bulk"]

PROTOCOL: Final = TProtocol("/baton/bulk-yamux/1")


class BulkConnection(YamuxConnection):
    """A yamux connection for bulk streams. No swarm knows it; who holds it runs `start`."""

    async def new_stream(self) -> INetStream:
        """Open a stream whose protocol is still to be negotiated.

        Raises:
            MuxedStreamError: the peer takes none, or the connection is gone.
        """
        return NetStream(await self.open_stream(), None, None)

    async def next_stream(self) -> INetStream:
        """Wait for a stream that the peer opens.

        Raises:
            MuxedConnUnavailable: the connection is over.
        """
        return NetStream(await self.accept_stream(), None, None)


async def negotiate_bulk(
    conn: ISecureConn,
    peer_id: ID,
    settings: YamuxSettings | None = None,
    conduct: Conduct | None = None,
) -> BulkConnection | None:
    """Have a peer that was dialled take a secured connection for bulk.

    Returns:
        The connection; `None` where the session is not one of ours, as over py-libp2p's own noise.

    Raises:
        MultiselectClientError: it does not know of such.
    """
    if not isinstance(conn, NoiseSession):
        return None
    selector = LimitedSelector[None]()
    selector.add_handler(PROTOCOL, None)
    await selector.select(conn, True)
    return BulkConnection(conn, peer_id, settings, conduct)
