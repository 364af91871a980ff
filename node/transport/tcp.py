"""TCP sockets for one interface: what py-libp2p's own transport cannot open.

An IPv6 link-local address (RFC 4007) means something only together with the interface that it is
reached through, its scope. And where two interfaces lead to one network, only a socket bound to an
interface is sure to use that one.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

import msgspec
import trio
from libp2p.io.trio import TrioTCPStream
from loguru import logger

__all__ = ["Endpoint", "Endpoints", "TcpStream", "endpoints_of", "open_listener", "open_stream"]

_BACKLOG: Final = 128
# From <netinet/in.h> and <netinet6/in6.h> of macOS; Python does not know them.
_DARWIN_IP_BOUND_IF: Final = 25
_DARWIN_IPV6_BOUND_IF: Final = 125


class Endpoint(msgspec.Struct, frozen=True):
    """One end of a TCP connection."""

    ip: str
    port: int
    scope: str = ""
    """The local interface that a link-local IPv6 address is reached through; empty for others."""


class Endpoints(msgspec.Struct, frozen=True):
    """Both ends of a TCP connection."""

    local: Endpoint
    remote: Endpoint


class TcpStream(TrioTCPStream):
    """py-libp2p's stream over TCP, that knows its remote address for IPv6 too."""

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the peer's IP address, without a scope, and its port; None once closed."""
        if self._cached_remote_address is None:
            ends = endpoints_of(self.stream)
            if ends is not None:
                self._cached_remote_address = ends.remote.ip, ends.remote.port
        return self._cached_remote_address


def endpoints_of(stream: trio.SocketStream) -> Endpoints | None:
    """Return both ends of a connection; None if it is over already."""
    try:
        return Endpoints(
            _endpoint(stream.socket.getsockname()), _endpoint(stream.socket.getpeername())
        )
    except OSError:
        return None


async def open_stream(
    ip: str, port: int, *, scope: str = "", interface: str = "", source: str = ""
) -> trio.SocketStream:
    """Connect to a TCP endpoint.

    Args:
        ip: address, without a scope.
        port: port.
        scope: name of the interface that a link-local IPv6 address is reached through.
        interface: name of the interface to use whatever the routing table says; empty for none.
        source: address to connect from where the kernel lets no socket be bound to an interface.

    Raises:
        OSError: no connection came about, or an interface does not exist.
    """
    sock = trio.socket.socket(_family(ip), socket.SOCK_STREAM)
    try:
        if interface and not _bind_to_interface(sock, interface) and source:
            await sock.bind(_socket_address(source, 0, scope))
        await sock.connect(_socket_address(ip, port, scope))
        return trio.SocketStream(sock)
    except BaseException:
        sock.close()
        raise


async def open_listener(ip: str, port: int, *, scope: str = "") -> trio.SocketListener:
    """Listen on a TCP endpoint.

    Args:
        ip: address, without a scope.
        port: port; 0 for any.
        scope: name of the interface that a link-local IPv6 address belongs to.

    Raises:
        OSError: the address cannot be bound (yet), or the port is taken.
    """
    sock = trio.socket.socket(_family(ip), socket.SOCK_STREAM)
    try:
        # Else the port of an earlier start stays taken for a minute.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        await sock.bind(_socket_address(ip, port, scope))
        sock.listen(_BACKLOG)
        return trio.SocketListener(sock)
    except BaseException:
        sock.close()
        raise


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def _socket_address(ip: str, port: int, scope: str) -> tuple[str | int, ...]:
    if ":" not in ip:
        return ip, port
    return ip, port, 0, socket.if_nametoindex(scope) if scope else 0


def _endpoint(address: tuple[str, int] | tuple[str, int, int, int]) -> Endpoint:
    # Python adds the scope to the text of an address where there is one.
    ip = address[0].partition("%")[0].removeprefix("::ffff:")
    index = address[3] if len(address) == 4 else 0
    return Endpoint(ip, address[1], socket.if_indextoname(index) if index else "")


def _bind_to_interface(sock: trio.socket.SocketType, interface: str) -> bool:
    """Have a socket use an interface whatever the routes say; return whether that worked."""
    try:
        if sys.platform == "darwin":
            index = socket.if_nametoindex(interface)
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, _DARWIN_IPV6_BOUND_IF, index)
            else:
                sock.setsockopt(socket.IPPROTO_IP, _DARWIN_IP_BOUND_IF, index)
        else:
            name = interface.encode() + b"\0"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
    except PermissionError as error:
        # Linux before 5.7 asks for a privilege.
        logger.debug("a socket cannot be bound to {}: {}", interface, error)
        return False
    return True
