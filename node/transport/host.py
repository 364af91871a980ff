"""A py-libp2p host whose connections carry bulk data fast."""

from __future__ import annotations

from collections.abc import Sequence

from libp2p import new_host
from libp2p.abc import IHost, IMuxedConn, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TMuxerOptions, TProtocol
from libp2p.network.config import ConnectionConfig
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from libp2p.stream_muxer.yamux.yamux import Yamux as StockYamux
from multiaddr import Multiaddr

from node.transport.guard import guarded
from node.transport.noise import NoiseSession, NoiseTransport
from node.transport.yamux.connection import YamuxConnection
from node.transport.yamux.settings import YamuxSettings

__all__ = ["new_fast_host"]


def new_fast_host(
    key_pair: KeyPair,
    *,
    fast: bool = True,
    listen_addrs: Sequence[Multiaddr] | None = None,
    announce_addrs: Sequence[Multiaddr] | None = None,
    connection_config: ConnectionConfig | None = None,
    secret: bytes | None = None,
    settings: YamuxSettings | None = None,
) -> IHost:
    """Return a libp2p host, not yet running, that offers noise and yamux over TCP and no more.

    py-libp2p's defaults would also let a peer choose plaintext, which anyone can forge.

    Args:
        key_pair: the node's identity.
        fast: carry connections with this package's noise and yamux. Without, py-libp2p's own carry
            them; both speak the same protocols, and either kind of host talks to the other.
        listen_addrs: where the host will listen.
        announce_addrs: the addresses that identify tells peers, in place of `listen_addrs`.
        connection_config: py-libp2p's limits and time-outs.
        secret: shared by all peers that may connect, in both directions. It should have the entropy
            of a key. None lets anyone connect.
        settings: limits and times of yamux connections; of no effect unless `fast`.
    """
    muxers: TMuxerOptions = {TProtocol(YAMUX_PROTOCOL): StockYamux}
    host = new_host(
        key_pair=key_pair,
        sec_opt={NOISE_PROTOCOL: NoiseTransport(key_pair, fast=fast, secret=secret)},
        muxer_opt=muxers,
        listen_addrs=listen_addrs,
        announce_addrs=announce_addrs,
        connection_config=connection_config,
    )
    network = host.get_network()
    if not isinstance(network, Swarm):
        raise TypeError(f"py-libp2p has built a {type(network).__name__}, not a Swarm")
    if fast:
        network.upgrader.muxer_multistream = _FastMuxers(muxers, settings or YamuxSettings())
    network.set_stream_handler(guarded(network.common_stream_handler))
    return host


class _FastMuxers(MuxerMultistream):
    """Negotiates yamux as ever, and runs it over noise sessions of ours as a `YamuxConnection`.

    py-libp2p's own makes its stock yamux whatever class the options name.
    """

    def __init__(self, muxers: TMuxerOptions, settings: YamuxSettings) -> None:
        super().__init__(muxers)
        self._settings = settings

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        if not isinstance(conn, NoiseSession):
            return await super().new_conn(conn, peer_id)
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        connection = YamuxConnection(conn, peer_id, self._settings)
        return self._annotate_connection(connection, conn, protocol)
