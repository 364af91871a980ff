"""The sockets that peers connect to: one for each address of the interfaces in use."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec
import trio
from libp2p.abc import IListener
from loguru import logger
from multiaddr import Multiaddr

from node.errors import PortInUse
from node.interfaces import Interface, is_scoped
from node.routes import tcp_address
from node.transport.tcp import open_listener

__all__ = ["Acceptor", "AnnouncedAddresses", "Listening", "check_port_free"]

Acceptor: TypeAlias = Callable[[trio.SocketStream], Awaitable[None]]
"""Takes over a connection that was accepted; must not raise."""

_ACCEPT_RETRY_S: Final = 0.2


async def check_port_free(port: int, interfaces: Sequence[Interface]) -> None:
    """Make sure that nobody else listens on a TCP port of these interfaces.

    Raises:
        PortInUse: somebody does.
    """
    for key in _keys(interfaces):
        try:
            await (await open_listener(key.ip, port, scope=key.scope)).aclose()
        except OSError as error:
            # Whatever else is wrong with an address is told when it is to be used.
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"port {port} is taken at {key.ip}", "choose another with --port"
                ) from error


class Listening:
    """Listens on the addresses of a changing set of interfaces.

    All of them on one port, as far as nobody else has it: an address that comes back is where it
    was, and one port is what a firewall has to be told.

    Args:
        nursery: owns the tasks that accept.
        accept: given each connection.
        port: to listen on; 0 for any.
    """

    def __init__(self, nursery: trio.Nursery, accept: Acceptor, port: int = 0) -> None:
        self._nursery = nursery
        self._accept = accept
        self._required = port
        self._port = port
        self._sockets: dict[_Key, _Socket] = {}
        self._complained: set[_Key] = set()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs that are listened on, those of the best interfaces first, each once."""
        return tuple(dict.fromkeys(each.address for each in self._sockets.values()))

    async def follow(self, interfaces: Sequence[Interface]) -> bool:
        """Listen on the addresses of these interfaces and on no others.

        Returns:
            Whether all of them could be bound. To be called again later if not: some addresses are
            there before they can be bound.
        """
        wanted = _keys(interfaces)
        for key in [key for key in self._sockets if key not in wanted]:
            self._sockets.pop(key).scope.cancel()
        self._complained.intersection_update(wanted)
        for key in wanted:
            if key not in self._sockets:
                await self._open(key)
        self._sockets = {key: self._sockets[key] for key in wanted if key in self._sockets}
        return len(self._sockets) == len(wanted)

    async def _open(self, key: _Key) -> None:
        try:
            listener = await self._bind(key)
        except OSError as error:
            if key not in self._complained:
                self._complained.add(key)
                logger.warning(
                    "cannot listen on {} of {} ({}), so it is not announced; trying again",
                    key.ip,
                    key.interface,
                    error.strerror or error,
                )
            return
        self._complained.discard(key)
        port = listener.socket.getsockname()[1]
        self._port = self._port or port
        self._sockets[key] = opened = _Socket(tcp_address(key.ip, port), listener)
        self._nursery.start_soon(self._serve, opened)

    async def _bind(self, key: _Key) -> trio.SocketListener:
        try:
            return await open_listener(key.ip, self._port, scope=key.scope)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or self._required or self._port == 0:
                raise
            return await open_listener(key.ip, 0, scope=key.scope)

    async def _serve(self, opened: _Socket) -> None:
        failing = False
        with opened.scope:
            async with opened.listener:
                while True:
                    try:
                        stream = await opened.listener.accept()
                    except OSError as error:
                        # Out of file descriptors, or the interface has gone: neither is for good.
                        if not failing:
                            logger.warning("cannot accept at {}: {}", opened.address, error)
                        failing = True
                        await trio.sleep(_ACCEPT_RETRY_S)
                        continue
                    failing = False
                    self._nursery.start_soon(self._accept, stream)


class AnnouncedAddresses(IListener):
    """Tells py-libp2p where we listen, for what identify says of us; it listens by itself no more.

    Args:
        addresses: returns the multiaddrs.
    """

    def __init__(self, addresses: Callable[[], Sequence[str]]) -> None:
        self._addresses = addresses

    async def listen(self, maddr: Multiaddr) -> None:
        """Listen to nothing: `Listening` does."""

    def get_addrs(self) -> tuple[Multiaddr, ...]:
        """Return the addresses that this node listens on."""
        return tuple(Multiaddr(each) for each in self._addresses())

    async def close(self) -> None:
        """Close nothing: `Listening` does."""


class _Key(msgspec.Struct, frozen=True):
    interface: str
    index: int
    """Another one than before: an interface that was made anew, to which the old sockets of
    link-local addresses do not belong."""
    ip: str

    @property
    def scope(self) -> str:
        return self.interface if is_scoped(self.ip) else ""


def _keys(interfaces: Sequence[Interface]) -> list[_Key]:
    return [_Key(each.name, each.index, ip) for each in interfaces for ip in each.ips]


class _Socket:
    def __init__(self, address: str, listener: trio.SocketListener) -> None:
        self.address = address
        self.listener = listener
        self.scope = trio.CancelScope()
