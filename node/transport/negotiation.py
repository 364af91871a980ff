"""multistream-select with limits.

py-libp2p's reads as many bytes as the peer announces, before anybody is authenticated, and lets
text that is no UTF-8 raise where nobody expects it.
"""

from __future__ import annotations

from typing import Final, TypeVar

from libp2p.abc import IRawConnection, ISecureConn, ISecureTransport
from libp2p.custom_types import TProtocol, TSecurityOptions
from libp2p.exceptions import ParseError
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import IOException
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectCommunicatorError, MultiselectError
from libp2p.protocol_muxer.generic_selector import GenericMultistreamSelector
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.security_multistream import SecurityMultistream
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

__all__ = ["NEGOTIATION_S", "LimitedCommunicator", "LimitedSecurity", "LimitedSelector"]

NEGOTIATION_S: Final = 5
"""For the two sides to agree on a protocol."""
_MAX_LINE: Final = 1024
"""Bytes of one line, the name of a protocol as a rule."""

T = TypeVar("T")


class LimitedCommunicator(MultiselectCommunicator):
    """Reads lines of bounded length, and raises one kind of error for whatever is wrong."""

    async def read(self) -> str:
        """Return the next line.

        Raises:
            MultiselectCommunicatorError: it is too long, no line, or the stream has ended.
        """
        try:
            line = await read_varint_prefixed_bytes_limited(self.read_writer, _MAX_LINE)
            text = line.decode()
        except (ParseError, IOException, UnicodeDecodeError) as error:
            raise MultiselectCommunicatorError(f"no line of multistream: {error}") from error
        if not text.endswith("\n"):
            raise MultiselectCommunicatorError("a line of multistream without its end")
        return text[:-1]


class LimitedSelector(GenericMultistreamSelector[T]):
    """Chooses among handlers as ever, over a `LimitedCommunicator`."""

    async def select(
        self,
        conn: ReadWriteCloser,
        is_initiator: bool,
        negotiate_timeout: int = NEGOTIATION_S,
    ) -> tuple[TProtocol, T]:
        """Agree with the peer on one of the handlers' protocols.

        Raises:
            MultiselectError: they do not, as the side that was asked.
            MultiselectClientError: they do not, as the side that asks.
        """
        communicator = LimitedCommunicator(conn)
        protocol: TProtocol | None
        if is_initiator:
            protocol = await self.multiselect_client.select_one_of(
                tuple(self.handlers), communicator, negotiate_timeout
            )
        else:
            protocol, _ = await self.multiselect.negotiate(communicator, negotiate_timeout)
        if protocol is None:
            raise MultiselectError("no protocol was chosen")
        return protocol, self.handlers[protocol]


class LimitedSecurity(SecurityMultistream):
    """Negotiates the security of a connection over a `LimitedSelector`.

    Args:
        transports: for any connection.
        bulk: for connections for bulk alone, preferred to those; a peer that has connected may
            choose among all of them.
    """

    def __init__(self, transports: TSecurityOptions, bulk: TSecurityOptions) -> None:
        super().__init__({})
        self._selector = LimitedSelector[ISecureTransport]()
        self._all = LimitedSelector[ISecureTransport]()
        for protocol, transport in transports.items():
            self.add_transport(protocol, transport)
        for protocol, transport in {**bulk, **transports}.items():
            self._all.add_handler(protocol, transport)

    async def select_transport_and_protocol(
        self, conn: IRawConnection, is_initiator: bool
    ) -> tuple[TProtocol, ISecureTransport]:
        """Agree with the peer on the security of a connection that may be for anything."""
        selector = self._selector if is_initiator else self._all
        return await selector.select(conn, is_initiator)

    async def secure_bulk(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """Secure a connection for bulk to a peer that was dialled.

        Raises:
            MultiselectClientError: the peer knows of none of the ways to.
            HandshakeFailure: it is another peer, or has another secret.
        """
        _, transport = await self._all.select(conn, True)
        return await transport.secure_outbound(conn, peer_id)
