"""Finds peers and keeps this node connected to them, as interfaces come and go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio
from loguru import logger

from node.discovery.announcement import Announcement, PeerFound
from node.discovery.dialer import Dialer
from node.discovery.mdns import Mdns, mdns
from node.discovery.watch import InterfaceWatch
from node.errors import DuplicateIdentity
from node.host import PeerHost
from node.interfaces import Interface, describe
from node.links import Link
from node.routes import parse_address
from node.secret import ClusterSecret
from protocols.gossip import InterfaceClass, InterfaceRecord

__all__ = ["Discovery"]

_LONELY_AFTER_S: Final = 10.0
_MDNS_RETRY_S: Final = 5.0
_PROBE_TIMEOUT_S: Final = 2.0
_QUEUE: Final = 256
_MAX_STRANGERS: Final = 16
"""Clusters beside this one that the log tells of."""


class Discovery:
    """Announces this node, browses for others, and dials whom it learns of.

    Args:
        host: the node's host, running.
        cluster: its name; announcements of other clusters are ignored.
        tag: announced in place of the name if the cluster is protected, and expected of others.
        incarnation: of this start.
        version: of this program.
        names: interfaces to use; empty for all.
        classes: what the user says that interfaces are, by name.
        on_interfaces: called when the interfaces or the addresses have changed.
    """

    def __init__(
        self,
        host: PeerHost,
        *,
        cluster: str,
        tag: str | None = None,
        incarnation: int,
        version: str,
        names: Sequence[str],
        classes: Mapping[str, InterfaceClass],
        on_interfaces: Callable[[], None],
    ) -> None:
        self._host = host
        self._cluster = cluster
        self._announced = cluster if tag is None else tag
        self._strangers: set[str] = set()
        self._incarnation = incarnation
        self._version = version
        self._names = tuple(names)
        self._classes = classes
        self._on_interfaces = on_interfaces
        self._dialer: Dialer | None = None
        self._changed = trio.Event()
        self._met_anyone = False
        host.on_link(up=self._meet)

    async def run(self, static: Sequence[tuple[str, str]] = ()) -> None:
        """Discover until cancelled.

        Args:
            static: (peer id, multiaddr) pairs to dial beside what mDNS finds.

        Raises:
            DuplicateIdentity: another running node has this node's identity. In a group.
        """
        send, receive = trio.open_memory_channel[PeerFound](_QUEUE)
        async with trio.open_nursery() as nursery, send, receive:
            self._dialer = Dialer(self._host, nursery, restricted=bool(self._names))
            for peer_id, address in static:
                self._dialer.pin(peer_id, address)
            watch = InterfaceWatch(self._host, self._names, self._classes, self._follow)
            nursery.start_soon(watch.run)
            nursery.start_soon(self._announce, send)
            nursery.start_soon(self._take_found, receive)
            nursery.start_soon(self._report_loneliness)
            await trio.sleep_forever()

    def learn(
        self,
        peer_id: str,
        addresses: tuple[str, ...],
        incarnation: int,
        interfaces: tuple[InterfaceRecord, ...] = (),
    ) -> None:
        """Dial a peer at these addresses from now on. Its own record tells of its interfaces."""
        if self._dialer is not None:
            self._dialer.learn(peer_id, addresses, incarnation, interfaces)

    def forget(self, peer_id: str) -> None:
        """Stop dialling a peer until it is found again."""
        if self._dialer is not None:
            self._dialer.forget(peer_id)

    def lost(self, peer_id: str) -> None:
        """Dial a peer again at once: a link to it broke."""
        if self._dialer is not None:
            self._dialer.poke(peer_id)

    def _meet(self, link: Link) -> None:
        self._met_anyone = True

    async def _announce(self, found: trio.MemorySendChannel[PeerFound]) -> None:
        async with mdns(found) as service:
            said: tuple[object, ...] = ()
            failed: Mapping[str, str] = {}
            while True:
                changed = self._changed = trio.Event()
                interfaces, announcement = self._host.interfaces, self._announcement()
                if (interfaces, announcement) != said or failed:
                    failed = await self._apply(service, announcement, interfaces, failed)
                    said = (interfaces, announcement)
                with trio.move_on_after(_MDNS_RETRY_S if failed else math.inf):
                    await changed.wait()

    async def _apply(
        self,
        service: Mdns,
        announcement: Announcement,
        interfaces: tuple[Interface, ...],
        failed_before: Mapping[str, str],
    ) -> Mapping[str, str]:
        try:
            failed = await trio.to_thread.run_sync(service.apply, announcement, interfaces)
        except OSError as error:
            failed = {each.name: str(error) for each in interfaces}
        for name, reason in failed.items():
            if failed_before.get(name) != reason:
                logger.warning("mDNS does not work on {} ({}): trying again", name, reason)
        working = [each for each in interfaces if each.name not in failed]
        if failed != failed_before or not failed:
            logger.info("announced over mDNS on {}", describe(working))
        return failed

    def _announcement(self) -> Announcement:
        return Announcement(
            self._host.peer_id,
            self._announced,
            self._incarnation,
            self._host.addresses,
            self._version,
        )

    def _follow(self) -> None:
        """Take note that the host has other interfaces or addresses."""
        self._on_interfaces()
        if self._dialer is not None:
            self._dialer.poke()
        self._changed.set()

    async def _take_found(self, found: trio.MemoryReceiveChannel[PeerFound]) -> None:
        async for event in found:
            announcement = event.announcement
            if announcement.peer_id == self._host.peer_id:
                await self._check_duplicate(announcement)
            elif announcement.cluster != self._announced:
                self._note_stranger(announcement)
            else:
                logger.debug(
                    "found {} over mDNS at {}", announcement.peer_id, announcement.addresses
                )
                if self._dialer is not None:
                    self._dialer.learn(
                        announcement.peer_id, announcement.addresses, announcement.incarnation
                    )

    def _note_stranger(self, announcement: Announcement) -> None:
        """Say, once per cluster, what keeps a node apart that may be meant to be in this one."""
        theirs = announcement.cluster
        if theirs in self._strangers or len(self._strangers) >= _MAX_STRANGERS:
            return
        self._strangers.add(theirs)
        if theirs == self._cluster:
            logger.warning(
                "{} announces the cluster {!r} without a secret, and is not let in: start it with "
                "this cluster's --secret-file, or one of the two with another --cluster",
                *(announcement.peer_id, self._cluster),
            )
        elif ClusterSecret.is_tag(theirs):
            logger.info(
                "{} is in a protected cluster that is not this one. If it should be in {!r}, give "
                "both nodes the same --cluster and the same --secret-file",
                *(announcement.peer_id, self._cluster),
            )

    async def _check_duplicate(self, announcement: Announcement) -> None:
        """Judge an announcement of this node's own peer id.

        What answers at the addresses that it gives is a living copy, not an old announcement. The
        one that started later gives way; both, if that cannot be told.
        """
        if announcement.incarnation == self._incarnation and set(announcement.addresses) <= set(
            self._host.addresses
        ):
            return
        foreign = [each for each in announcement.addresses if each not in self._host.addresses]
        for address in foreign:
            if not await _answers(address):
                continue
            problem = f"another node runs with this node's identity at {address}"
            remedy = "its data directory was copied: remove identity.key from one of the two"
            if announcement.incarnation > self._incarnation:
                logger.error("{}: {}", problem, remedy)
                return
            raise DuplicateIdentity(problem, remedy)

    async def _report_loneliness(self) -> None:
        await trio.sleep(_LONELY_AFTER_S)
        if self._met_anyone:
            return
        logger.warning(
            "no peer after {:g} s: announced the cluster {!r} over mDNS (UDP 5353) on {}, "
            "listening at {}. If there should be one, see whether the network passes multicast, "
            "or name it with --peer",
            _LONELY_AFTER_S,
            self._cluster,
            describe(self._host.interfaces),
            ", ".join(self._host.addresses),
        )


async def _answers(address: str) -> bool:
    try:
        with trio.fail_after(_PROBE_TIMEOUT_S):
            stream = await trio.open_tcp_stream(*parse_address(address))
    except (OSError, ValueError, trio.TooSlowError):
        return False
    await stream.aclose()
    return True
