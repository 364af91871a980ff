"""Noise sessions for bulk: py-libp2p's handshake, record handling of our own.

On the wire nothing differs from any libp2p noise, unless both ends know a cheaper cipher (see
`node.transport.noise_suites`). What differs is the cost: messages are sealed into one preallocated
buffer and leave in one send, arrive many in one receive, and are opened into the buffer where their
bytes are wanted.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import trio
from cryptography.exceptions import InvalidTag
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.crypto.keys import KeyPair, PrivateKey
from libp2p.crypto.x25519 import create_new_key_pair as new_x25519_key_pair
from libp2p.io.exceptions import (
    ConnectionClosedError,
    DecryptionFailedException,
    IOException,
)
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.exceptions import NoiseStateError
from libp2p.security.noise.patterns import PatternXX
from libp2p.security.noise.transport import Transport as StockNoiseTransport
from libp2p.security.secure_session import SecureSession
from loguru import logger
from noise.connection import NoiseConnection

from node.transport.conduct import Conduct, Lenient
from node.transport.noise_records import (
    LENGTH_SIZE,
    MAX_PLAINTEXT,
    MAX_RECORD,
    TAG_SIZE,
    MessageCipher,
    Sealer,
)
from node.transport.noise_suites import CHACHA_POLY, Suite
from node.transport.tcp import endpoints_of

__all__ = ["NoiseSession", "NoiseTransport", "SecretDiffers"]

_NOTSENT_LOWAT: Final = 512 << 10
_RECEIVE_BUFFER: Final = 16 * MAX_RECORD


class NoiseSession(SecureSession):
    """A secured TCP connection that sends and receives noise messages in batches.

    One task may send while another receives; the yamux connection above keeps it so.

    Args:
        base: the session that the handshake has made.
        stream: the TCP stream below it.
        noise: the noise state after the handshake, whose keys and counters are taken over.
        suite: what the handshake was made with.

    Attributes:
        suite: what the messages are sealed with.
        endpoints: both ends of the TCP connection; None if it was over before the session began.
    """

    def __init__(
        self,
        base: SecureSession,
        stream: trio.SocketStream,
        noise: NoiseConnection,
        suite: Suite = CHACHA_POLY,
    ) -> None:
        super().__init__(
            local_peer=base.local_peer,
            local_private_key=base.local_private_key,
            remote_peer=base.remote_peer,
            remote_permanent_pubkey=base.remote_permanent_pubkey,
            is_initiator=base.is_initiator,
            conn=base.conn,
        )
        protocol = noise.noise_protocol
        if protocol is None:
            raise NoiseStateError("the noise handshake has left no state")
        sending, receiving = protocol.cipher_state_encrypt, protocol.cipher_state_decrypt
        self._sealer = Sealer(MessageCipher(bytes(sending.k), sending.n, suite))
        self._opener = MessageCipher(bytes(receiving.k), receiving.n, suite)
        self.suite = suite
        self.endpoints = endpoints_of(stream)
        self._stream = stream
        self._received = memoryview(bytearray(_RECEIVE_BUFFER))
        self._start = self._end = 0
        self._opened = memoryview(bytearray(MAX_PLAINTEXT))
        self._unread = self._opened[:0]
        _raise_low_water_mark(stream)

    async def send(self, parts: Iterable[memoryview]) -> None:
        """Seal and send `parts`, one after another.

        Not to be cancelled unless the connection is given up with it.

        Raises:
            ConnectionClosedError: the connection is gone.
        """
        try:
            for batch in self._sealer.seal(parts):
                await self._stream.send_all(batch)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"sending failed: {error}", transport="tcp") from error

    async def next_message(self) -> int:
        """Wait for the next noise message and return the size of its plaintext in bytes.

        Returns at once if it has come already. Cancelling loses nothing.

        Raises:
            ConnectionClosedError: the connection is gone, or ends inside a message.
            DecryptionFailedException: the message is too short to be one.
        """
        while True:
            available = self._end - self._start
            if available >= LENGTH_SIZE:
                size = int.from_bytes(self._received[self._start : self._start + 2], "big")
                if size < TAG_SIZE:
                    raise DecryptionFailedException(f"a noise message of {size} bytes")
                if available >= LENGTH_SIZE + size:
                    return size - TAG_SIZE
            await self._receive_more()

    def open_into(self, plaintext: memoryview) -> None:
        """Decrypt the message that `next_message` has told the size of.

        Raises:
            DecryptionFailedException: the message is not authentic.
        """
        body = self._start + LENGTH_SIZE
        end = body + len(plaintext) + TAG_SIZE
        self._opener.open_into(self._received[body:end], plaintext)
        self._start = end

    def open(self, size: int) -> memoryview:
        """As `open_into`, into a buffer of the session's, valid until the next `open`."""
        plaintext = self._opened[:size]
        self.open_into(plaintext)
        return plaintext

    def take_unread(self) -> memoryview:
        """Return what `read` has opened but not returned; the muxer begins with it."""
        unread, self._unread = self._unread, self._opened[:0]
        return unread

    async def read(self, n: int | None = None) -> bytes:
        """Return up to `n` bytes: py-libp2p's way in, for the negotiation of the muxer."""
        if n == 0:
            return b""
        while not self._unread:
            self._unread = self.open(await self.next_message())
        data = bytes(self._unread[:n])
        self._unread = self._unread[len(data) :]
        return data

    async def write(self, data: bytes) -> None:
        """Send `data`: py-libp2p's way in, for the negotiation of the muxer."""
        await self.send((memoryview(data),))

    async def _receive_more(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif _RECEIVE_BUFFER - self._start < MAX_RECORD:
            rest = bytes(self._received[self._start : self._end])
            self._received[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        try:
            count = await self._stream.socket.recv_into(self._received[self._end :])
        except (OSError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"receiving failed: {error}", transport="tcp") from error
        if count == 0:
            where = "inside a noise message" if self._end > self._start else "by the peer"
            raise ConnectionClosedError(f"the connection was closed {where}", transport="tcp")
        self._end += count


class SecretDiffers(HandshakeFailure):
    """What the peer said in the handshake was sealed with another secret than ours, or none."""


class NoiseTransport(StockNoiseTransport):
    """py-libp2p's noise transport, whose sessions are `NoiseSession` where they can be.

    Args:
        key_pair: the node's identity.
        fast: whether to make `NoiseSession`; py-libp2p's own sessions otherwise.
        secret: shared by the members of a cluster. It enters the handshake as its prologue, so the
            handshake with anyone who has another secret, or none, fails its authentication.
        conduct: says which peers are refused even if the handshake succeeds.
        suite: what to shake hands with. Only `NoiseSession` knows others than the default.
    """

    def __init__(
        self,
        key_pair: KeyPair,
        *,
        fast: bool = True,
        secret: bytes | None = None,
        conduct: Conduct | None = None,
        suite: Suite = CHACHA_POLY,
    ) -> None:
        super().__init__(key_pair, new_x25519_key_pair().private_key)
        self._conduct = conduct or Lenient()
        self._fast = fast
        self._suite = suite
        self._prologue = None if secret is None else hashlib.sha256(b"baton" + secret).digest()

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """Shake hands with a peer that has connected.

        Raises:
            HandshakeFailure: it did not, or not with our secret, or it is refused.
        """
        with _handshake_failures():
            session = await super().secure_inbound(conn)
        peer = session.get_remote_peer()
        if self._conduct.refuses(peer):
            await session.close()
            raise HandshakeFailure(f"{peer} is refused for what it has done")
        return session

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """Shake hands with a peer that was dialled.

        Raises:
            SecretDiffers: it has another secret. Only this side learns that: the other one sees no
                more of us than that we hang up.
            HandshakeFailure: it is another peer, or talks nonsense.
        """
        with _handshake_failures():
            return await super().secure_outbound(conn, peer_id)

    def get_pattern(self) -> PatternXX:
        """Return the handshake for one connection."""
        ours = self.local_peer, self.libp2p_privkey, self.noise_privkey, self.early_data
        if self._fast:
            return _Pattern(*ours, prologue=self._prologue, suite=self._suite)
        return PatternXX(*ours, prologue=self._prologue)


class _Pattern(PatternXX):
    """The XX handshake, which keeps its noise state to make a `NoiseSession` of it."""

    _noise: NoiseConnection

    def __init__(
        self,
        local_peer: ID,
        libp2p_privkey: PrivateKey,
        noise_static_key: PrivateKey,
        early_data: bytes | None,
        *,
        prologue: bytes | None,
        suite: Suite,
    ) -> None:
        super().__init__(
            local_peer, libp2p_privkey, noise_static_key, early_data, prologue=prologue
        )
        self.protocol_name = suite.noise_name
        self._suite = suite

    def create_noise_state(self, prologue: bytes | None = None) -> NoiseConnection:
        self._noise = super().create_noise_state(prologue=prologue)
        return self._noise

    async def handshake_inbound(self, conn: IRawConnection) -> ISecureConn:
        return self._fast_session(await super().handshake_inbound(conn), conn)

    async def handshake_outbound(self, conn: IRawConnection, remote_peer: ID | None) -> ISecureConn:
        return self._fast_session(await super().handshake_outbound(conn, remote_peer), conn)

    def _fast_session(self, base: ISecureConn, conn: IRawConnection) -> ISecureConn:
        stream = _tcp_stream(conn)
        if stream is None or not isinstance(base, SecureSession):
            return base
        return NoiseSession(base, stream, self._noise, self._suite)


@contextmanager
def _handshake_failures() -> Iterator[None]:
    """Raise whatever a peer can cause in the handshake's code as a failure of the handshake."""
    try:
        yield
    except (HandshakeFailure, IOException):
        raise
    except InvalidTag as error:
        raise SecretDiffers("its handshake is sealed with another secret") from error
    except Exception as error:
        # noiseprotocol and the protobufs raise what they please.
        raise HandshakeFailure(f"the handshake makes no sense: {error!r}") from error


def _tcp_stream(conn: IRawConnection) -> trio.SocketStream | None:
    """Return the TCP stream right below `conn`, if that is what is there."""
    if isinstance(conn, RawConnection) and isinstance(conn.stream, TrioTCPStream):
        return conn.stream.stream
    return None


def _raise_low_water_mark(stream: trio.SocketStream) -> None:
    # trio sets 16 KiB, good for latency and bad for bulk: the kernel then wakes us for every few
    # packets. Half a frame keeps the pipe full at a few wake-ups per MB.
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOTSENT_LOWAT)
    except (AttributeError, OSError) as error:
        logger.debug("TCP_NOTSENT_LOWAT stays as it was: {}", error)
