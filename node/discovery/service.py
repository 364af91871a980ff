"""Finds peers and keeps this node connected to them, as interfaces come and go."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio
from loguru import logger

from node.discovery.announcement import Announcement, PeerFound, foremost
from node.discovery.copies import Copies, Verdict
from node.discovery.dialer import Dialer
from node.discovery.mdns import Mdns, mdns
from node.discovery.watch import InterfaceWatch
from node.host import PeerHost
from node.interfaces import Interface, describe
from node.links import Link
from node.secret import ClusterSecret
from protocols.gossip import InterfaceClass, InterfaceRecord, NodeRecord

__all__ = ["Discovery"]

_LONELY_AFTER_S: Final = 10.0
_MDNS_RETRY_S: Final = 5.0
_MAX_INCARNATION: Final = 2**53
"""Nobody starts that often: a peer that says so is wrong."""
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
        outdated: raises this node's incarnation above one, and returns the new one.
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
        outdated: Callable[[int], Awaitable[int]],
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
        self._outdated = outdated
        self._dialer: Dialer | None = None
        self._changed = trio.Event()
        self._unsaid: list[str] = []
        self._nursery: trio.Nursery | None = None
        self._copies = Copies(host, restricted=bool(names))
        self._met_anyone = False
        self._heard_anyone = False
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
            self._nursery = nursery
            nursery.start_soon(self._take_found, receive, nursery)
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

    def left(self, peer_id: str) -> None:
        """Stop dialling a peer that has said goodbye, unless the user named it."""
        if self._dialer is not None:
            self._dialer.left(peer_id)

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
        addresses = foremost(self._host.addresses, self._host.interfaces)
        unsaid = sorted(set(self._host.addresses) - set(addresses))
        if unsaid and unsaid != self._unsaid:
            logger.info("mDNS has no room for all addresses, not announced: {}", ", ".join(unsaid))
        self._unsaid = unsaid
        return Announcement(
            self._host.peer_id,
            self._announced,
            self._incarnation,
            addresses,
            self._version,
        )

    def _follow(self) -> None:
        """Take note that the host has other interfaces or addresses."""
        self._on_interfaces()
        if self._dialer is not None:
            self._dialer.poke()
        self._changed.set()

    async def _take_found(
        self, found: trio.MemoryReceiveChannel[PeerFound], nursery: trio.Nursery
    ) -> None:
        async for event in found:
            announcement = event.announcement
            if announcement.peer_id == self._host.peer_id:
                nursery.start_soon(
                    self._copies.check,
                    self._incarnation,
                    *(announcement.incarnation, announcement.addresses),
                )
            elif announcement.cluster != self._announced:
                self._note_stranger(announcement)
            else:
                self._heard_anyone = True
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

    def doubt(self, record: NodeRecord) -> None:
        """Look into a record of this node's that a peer has, and that this node did not send.

        A copy of it may have, or an earlier start of its own whose incarnation was higher: then
        nobody takes notice of what it says now, until it has a higher one.
        """
        if self._nursery is not None:
            self._nursery.start_soon(self._look_into, record)

    async def _look_into(self, record: NodeRecord) -> None:
        verdict = await self._copies.check(self._incarnation, record.incarnation, record.addresses)
        outdated = self._incarnation <= record.incarnation <= _MAX_INCARNATION
        if verdict is Verdict.NONE and outdated:
            self._incarnation = await self._outdated(record.incarnation)
            self._changed.set()
            logger.warning(
                "peers know of a later start of this node ({}) than this one: was its state lost "
                "while the clock was wrong? It goes on as {}",
                *(record.incarnation, self._incarnation),
            )

    async def _report_loneliness(self) -> None:
        await trio.sleep(_LONELY_AFTER_S)
        if self._heard_anyone:
            return
        said = (
            f"announced the cluster {self._cluster!r} over mDNS (UDP 5353, to 224.0.0.251 and "
            f"ff02::fb) on {describe(self._host.interfaces)}"
        )
        if self._met_anyone:
            logger.warning(
                "there are peers, but none was heard over mDNS after {:g} s: {}. This network does "
                "not seem to pass multicast, so name the other nodes with --peer",
                *(_LONELY_AFTER_S, said),
            )
            return
        logger.warning(
            "no peer after {:g} s: {}, listening at {}. If there should be one, see whether the "
            "network and the firewalls pass multicast, or name it with --peer",
            *(_LONELY_AFTER_S, said, ", ".join(self._host.addresses)),
        )
