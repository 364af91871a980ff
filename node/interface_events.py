"""Wakes whoever waits when the kernel says that an interface or an address has changed.

What has changed is not read from the messages: the interfaces are listed anew. So a lost message
costs nothing but time, and the kinds of messages need not be known.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import trio
from loguru import logger

__all__ = ["InterfaceEvents", "interface_events"]

# From <linux/rtnetlink.h>.
_RTMGRP_LINK: Final = 0x1
_RTMGRP_IPV4_IFADDR: Final = 0x10
_RTMGRP_IPV6_IFADDR: Final = 0x100
_MESSAGE_SIZE: Final = 65536
_RETRY_S: Final = 1.0


class InterfaceEvents:
    """Tells of changes. Made by `interface_events`.

    Attributes:
        prompt: whether the kernel tells; otherwise only looking does.
    """

    def __init__(self, *, prompt: bool) -> None:
        self.prompt = prompt
        self._changed = trio.Event()

    async def wait(self) -> None:
        """Wait for the next change; one since the last call returns at once."""
        await self._changed.wait()
        self._changed = trio.Event()

    def tell(self) -> None:
        """Wake whoever waits."""
        self._changed.set()


@asynccontextmanager
async def interface_events() -> AsyncGenerator[InterfaceEvents]:
    """Listen to the kernel while open."""
    try:
        kernel = await _open()
    except OSError as error:
        logger.debug("the kernel does not tell of changed interfaces ({}): looking often", error)
        yield InterfaceEvents(prompt=False)
        return
    events = InterfaceEvents(prompt=True)
    with kernel:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_listen, kernel, events)
            yield events
            nursery.cancel_scope.cancel()


async def _open() -> trio.socket.SocketType:
    """Open a socket that tells of changed interfaces.

    Raises:
        OSError: the kernel has none.
    """
    if sys.platform == "linux":
        sock = trio.socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        try:
            await sock.bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
        except BaseException:
            sock.close()
            raise
        return sock
    if sys.platform == "darwin":
        # Routing sockets tell of interfaces and addresses too: see route(4).
        return trio.socket.socket(socket.AF_ROUTE, socket.SOCK_RAW, 0)
    raise OSError(f"not known for {sys.platform}")


async def _listen(kernel: trio.socket.SocketType, events: InterfaceEvents) -> None:
    while True:
        try:
            await kernel.recv(_MESSAGE_SIZE)
        except OSError as error:
            # More changes than the socket holds: that is a change.
            logger.debug("messages of the kernel were lost: {}", error)
            await trio.sleep(_RETRY_S)
        events.tell()
