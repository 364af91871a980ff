"""Keeps to the interfaces that there are: they come and go while a node runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio
from loguru import logger

from node.discovery.pacing import Pacing
from node.errors import BatonError
from node.host import PeerHost
from node.interface_events import interface_events
from node.interfaces import (
    Interface,
    describe,
    left_out,
    list_interfaces,
    select_interfaces,
)
from protocols.gossip import InterfaceClass

__all__ = ["InterfaceWatch"]

_SETTLE_S: Final = 0.1
"""An interface that comes does so in several steps."""
_LOOK_PROMPTED_S: Final = 5.0
_LOOK_UNPROMPTED_S: Final = 1.0


class InterfaceWatch:
    """Has the host take up interfaces and addresses that appear, and drop those that went.

    The kernel says when to look; besides, it is looked every few seconds, and as long as an address
    is there that could not be listened on yet.

    Args:
        host: the node's host, running.
        names: interfaces to use; empty for all.
        classes: what the user says that interfaces are, by name.
        changed: called after the host has taken up a change.
    """

    def __init__(
        self,
        host: PeerHost,
        names: Sequence[str],
        classes: Mapping[str, InterfaceClass],
        changed: Callable[[], None],
    ) -> None:
        self._host = host
        self._names = tuple(names)
        self._classes = classes
        self._changed = changed
        self._pacing = Pacing()
        self._complete = True
        self._missed = ""
        self._left_out: set[str] = set()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with interface_events() as events:
            await self._look()
            while True:
                prompted = events.prompt and self._complete
                with trio.move_on_after(_LOOK_PROMPTED_S if prompted else _LOOK_UNPROMPTED_S):
                    await events.wait()
                await trio.sleep(max(_SETTLE_S, self._pacing.wait_s(trio.current_time())))
                await self._look()

    async def _look(self) -> None:
        try:
            found = await trio.to_thread.run_sync(list_interfaces, self._classes)
        except OSError as error:
            logger.warning("the network interfaces cannot be listed ({}): looking again", error)
            return
        interfaces = self._select(found)
        if not self._names:
            self._report_left_out(left_out(found, interfaces))
        changed = interfaces != self._host.interfaces
        if not changed and self._complete:
            return
        before = self._host.addresses
        self._complete = await self._host.use_interfaces(interfaces)
        if changed or self._host.addresses != before:
            self._pacing.taken(trio.current_time())
            logger.info("the network has changed, now using {}", describe(interfaces))
            self._changed()

    def _report_left_out(self, interfaces: tuple[Interface, ...]) -> None:
        names = {each.name for each in interfaces}
        if not names <= self._left_out:
            logger.info(
                "not using {}, which are virtual: name them with --interface, beside the others, "
                "if peers are to be reached over them",
                ", ".join(sorted(names)),
            )
        self._left_out = names

    def _select(self, found: tuple[Interface, ...]) -> tuple[Interface, ...]:
        """Return what to use of what is there, which may be nothing for a while."""
        missed = ""
        try:
            interfaces = select_interfaces(found, self._names)
        except BatonError as error:
            missed = error.problem
            present = [each.name for each in found if each.name in self._names]
            interfaces = select_interfaces(found, present) if present else ()
        if missed and missed != self._missed:
            logger.warning("{}: waiting for it", missed)
        self._missed = missed
        return interfaces
