"""A py-libp2p host whose connections carry bulk data fast."""

from __future__ import annotations

from collections.abc import Sequence

from libp2p.abc import IHost, IMuxedConn, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TMuxerClass, TMuxerOptions, TProtocol, TSecurityOptions
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from libp2p.stream_muxer.yamux.yamux import Yamux as StockYamux
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from node.transport.bulk import PROTOCOL as BULK_PROTOCOL
from node.transport.bulk import BulkConnection
from node.transport.conduct import Conduct, Lenient
from node.transport.guard import guarded
from node.transport.inbound import InboundStreams
from node.transport.negotiation import LimitedSecurity, LimitedSelector
from node.transport.noise import NoiseSession, NoiseTransport
from node.transport.noise_suites import AES_GCM, PROTOCOL_AES, aes_pays
from node.transport.yamux.connection import YamuxConnection
from node.transport.yamux.settings import YamuxSettings

__all__ = ["new_fast_host"]


def new_fast_host(
    key_pair: KeyPair,
    *,
    fast: bool = True,
    announce_addrs: Sequence[Multiaddr] | None = None,
    connection_config: ConnectionConfig | None = None,
    secret: bytes | None = None,
    settings: YamuxSettings | None = None,
    conduct: Conduct | None = None,
) -> IHost:
    """Return a libp2p host, not yet running, that offers noise and yamux over TCP and no more.

    py-libp2p's defaults would also let a peer choose plaintext, which anyone can forge.

    Args:
        key_pair: the node's identity.
        fast: carry connections with this package's noise and yamux. Without, py-libp2p's own carry
            them; both speak the same protocols, and either kind of host talks to the other.
        announce_addrs: the addresses that identify tells peers, in place of those listened on.
        connection_config: py-libp2p's limits and time-outs.
        secret: shared by all peers that may connect, in both directions. It should have the entropy
            of a key. None lets anyone connect.
        settings: limits and times of yamux connections; of no effect unless `fast`.
        conduct: told what peers do wrong, and whom to refuse; left out, nobody is.
    """
    conduct = conduct or Lenient()
    noise = NoiseTransport(key_pair, fast=fast, secret=secret, conduct=conduct)
    bulk: TSecurityOptions = {}
    if fast and aes_pays():
        bulk[PROTOCOL_AES] = NoiseTransport(key_pair, secret=secret, conduct=conduct, suite=AES_GCM)
    muxers: TMuxerOptions = {TProtocol(YAMUX_PROTOCOL): StockYamux}
    upgrader = TransportUpgrader({NOISE_PROTOCOL: noise}, muxers)
    upgrader.security_multistream = LimitedSecurity({NOISE_PROTOCOL: noise}, bulk)
    upgrader.muxer_multistream = _Muxers(
        muxers, conduct, (settings or YamuxSettings()) if fast else None
    )
    peer_id, peerstore = ID.from_pubkey(key_pair.public_key), PeerStore()
    peerstore.add_key_pair(peer_id, key_pair)
    # Without py-libp2p's resource manager: its one bound on streams is shared by all peers.
    network = Swarm(peer_id, peerstore, upgrader, [TCP()], connection_config=connection_config)
    host = BasicHost(network=network, announce_addrs=announce_addrs)
    network.set_stream_handler(guarded(InboundStreams(host.get_mux(), conduct).serve))
    return host


class _Muxers(MuxerMultistream):
    """Negotiates yamux as ever, and runs it over noise sessions of ours as a `YamuxConnection`.

    py-libp2p's own makes its stock yamux whatever class the options name. A peer that has connected
    may also ask for a `BulkConnection`, which is not for the swarm.
    """

    def __init__(
        self, muxers: TMuxerOptions, conduct: Conduct, settings: YamuxSettings | None
    ) -> None:
        super().__init__({})
        self._selector = LimitedSelector[TMuxerClass]()
        for protocol, muxer in muxers.items():
            self.add_transport(protocol, muxer)
        self._inbound = LimitedSelector[TMuxerClass | None]()
        for protocol, muxer in (*muxers.items(), (BULK_PROTOCOL, None)):
            self._inbound.add_handler(protocol, muxer)
        self._conduct = conduct
        self._settings = settings

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        if self._settings is None or not isinstance(conn, NoiseSession):
            return await super().new_conn(conn, peer_id)
        selector = self._selector if conn.is_initiator else self._inbound
        protocol, _ = await selector.select(conn, conn.is_initiator)
        kind = BulkConnection if protocol == BULK_PROTOCOL else YamuxConnection
        connection = kind(conn, peer_id, self._settings, self._conduct)
        return self._annotate_connection(connection, conn, protocol)
