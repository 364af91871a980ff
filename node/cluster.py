"""The cluster as one object: who is there, who is master, and streams to them."""

from __future__ import annotations

import platform
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import msgspec
import psutil
import trio
from loguru import logger

from node.discovery.service import Discovery
from node.election.service import Election
from node.errors import BatonError, PeerUnreachable
from node.host import Handler, PeerHost
from node.identity import Identity
from node.interfaces import list_interfaces, select_interfaces
from node.link_reports import LinkReports, Reports
from node.links import Link
from node.membership.service import Membership
from node.membership.view import Change, ClusterView, Event
from node.routes import Route, parse_peer, peer_address, rank_routes
from node.secret import ClusterSecret, stretch
from node.status import ClusterStatus, own_links, render_status
from node.transport.streams import ByteStream
from protocols.engine import EngineName
from protocols.gossip import (
    Accelerator,
    Heartbeat,
    InstanceRecord,
    InterfaceClass,
    ModelRecord,
    NodeRecord,
    Role,
)
from protocols.status import PROTOCOL_ID as LINKS_PROTOCOL
from protocols.status import LinkStatus

__all__ = ["ChangeListener", "Cluster", "ClusterOptions"]

_MAX_CLUSTER_NAME: Final = 63
_REFRESH_S: Final = 10.0

ChangeListener: TypeAlias = Callable[[Event], None]


class ClusterOptions(msgspec.Struct, frozen=True):
    """What the user chose, and what this node can do."""

    cluster: str = "baton"
    interfaces: tuple[str, ...] = ()
    """Names of those to use; empty for all."""
    interface_classes: dict[str, InterfaceClass] = {}
    """What the user says that interfaces are, where their hardware is misjudged."""
    port: int = 0
    peers: tuple[str, ...] = ()
    """Multiaddrs with peer ids, dialled beside what mDNS finds."""
    secret: bytes | None = None
    """What every member has to know, as it is in the file; None lets anyone on the network join."""
    roles: tuple[Role, ...] = ("prefill", "decode")
    engines: tuple[EngineName, ...] = ()
    accelerator: Accelerator = "cpu"
    api: str = ""
    version: str = ""


class Cluster:
    """This node's part in the cluster. Made by `joined`.

    Attributes:
        host: opens and serves streams, and knows the links.
    """

    def __init__(
        self,
        identity: Identity,
        options: ClusterOptions,
        host: PeerHost,
        secret: ClusterSecret | None = None,
    ) -> None:
        self.host = host
        self._identity = identity
        self._options = options
        self._pinned = frozenset(parse_peer(address)[0] for address in options.peers)
        self._known_members: frozenset[str] = frozenset()
        self._listeners: list[ChangeListener] = []
        self._changed = trio.Event()
        self._membership = Membership(
            host,
            self._first_record(identity),
            on_event=self._take_event,
            on_claim=self._take_claim,
            own_claim=lambda: self._election.claim,
            on_stranger=lambda peer_id: self._discovery.forget(peer_id),
            on_known=lambda record: self._discovery.doubt(record),
        )
        self._election = Election(
            self._membership.view,
            identity.term,
            persist=identity.save_term,
            publish=self._membership.publish,
            greet=self._membership.greet,
            on_change=self._take_standing,
        )
        self._discovery = Discovery(
            host,
            cluster=options.cluster,
            tag=secret.tag if secret is not None else None,
            incarnation=identity.incarnation,
            version=options.version,
            names=options.interfaces,
            classes=options.interface_classes,
            on_interfaces=self.refresh,
            outdated=self._raise_incarnation,
        )
        self._link_reports = LinkReports(
            self._own_links,
            lambda peer_id: self.view.get(peer_id) is not None,
            host.open_stream,
        )
        host.set_handler(LINKS_PROTOCOL, self._link_reports.serve)
        host.on_link(up=self._link_changed, down=self._link_lost)

    @classmethod
    @asynccontextmanager
    async def joined(cls, identity: Identity, options: ClusterOptions) -> AsyncGenerator[Cluster]:
        """Join the cluster while open, and leave it with a goodbye.

        The goodbye needs what would be cancelled with the task: end the body to have it said.

        Raises:
            UnknownInterface: an interface that was named does not exist.
            NoUsableInterface: there is none.
            PortInUse: the port that was asked for is taken.
            BatonError: a static peer is no multiaddr, or the cluster's name is too long.
            DuplicateIdentity: another node runs with this identity; in an exception group, and
                whatever runs inside is cancelled.
        """
        if not 0 < len(options.cluster.encode()) <= _MAX_CLUSTER_NAME:
            raise BatonError(
                f"{options.cluster!r} cannot be the name of a cluster",
                f"take one of 1 to {_MAX_CLUSTER_NAME} bytes for --cluster",
            )
        static = [parse_peer(address) for address in options.peers]
        found = await trio.to_thread.run_sync(list_interfaces, options.interface_classes)
        interfaces = select_interfaces(found, options.interfaces)
        secret = await _stretch_secret(options)
        host = PeerHost(
            identity.key_pair,
            interfaces,
            port=options.port,
            named=bool(options.interfaces),
            secret=secret.key if secret is not None else None,
        )
        async with host.running():
            logger.info(
                "listening at {}",
                ", ".join(peer_address(host.peer_id, each) for each in host.addresses),
            )
            cluster = cls(identity, options, host, secret)
            # The goodbye is said when the rest has ended, so membership is around it.
            async with cluster._membership.running(), trio.open_nursery() as nursery:
                nursery.start_soon(cluster._election.run)
                nursery.start_soon(cluster._discovery.run, static)
                nursery.start_soon(cluster._refresh_regularly)
                yield cluster
                nursery.cancel_scope.cancel()

    @property
    def peer_id(self) -> str:
        """This node."""
        return self.host.peer_id

    @property
    def view(self) -> ClusterView:
        """The members, this node among them."""
        return self._membership.view

    @property
    def master(self) -> tuple[str, int] | None:
        """Peer id and term of the master; None while there is none."""
        return self._election.master

    @property
    def is_master(self) -> bool:
        return self._election.is_master

    @property
    def term(self) -> int:
        """The highest election term that this node knows of."""
        return self._election.term

    @property
    def links(self) -> tuple[Link, ...]:
        """Open links, the one in use first of each peer."""
        return self.host.links

    @property
    def own_record(self) -> NodeRecord:
        """What this node says of itself."""
        return self.view.own

    def on_change(self, listener: ChangeListener) -> None:
        """Have a function called after each change of the view. It must not block."""
        self._listeners.append(listener)

    async def wait_until(self, condition: Callable[[Cluster], bool]) -> None:
        """Wait until `condition` holds; it is tried after each change of anything."""
        while not condition(self):
            await self._changed.wait()

    def update_instances(self, instances: tuple[InstanceRecord, ...]) -> None:
        """Say which instances this node has; published at once if that is new."""
        record = msgspec.structs.replace(self.own_record, instances=instances)
        self._membership.update(_with_memory(record))

    def update_models(self, models: tuple[ModelRecord, ...]) -> None:
        """Say which checkpoints are on this node's disk."""
        self._membership.update(msgspec.structs.replace(self.own_record, models=models))

    def refresh(self) -> None:
        """Take addresses, interfaces and memory into this node's record anew."""
        record = msgspec.structs.replace(
            self.own_record,
            addresses=self.host.addresses,
            interfaces=tuple(each.record() for each in self.host.interfaces),
        )
        self._membership.update(_with_memory(record))

    def set_handler(self, protocol: str, handler: Handler, *, bulk: bool = False) -> None:
        """Serve streams of a protocol; see `PeerHost.set_handler`."""
        self.host.set_handler(protocol, handler, bulk=bulk)

    async def open_stream(self, peer_id: str, protocol: str) -> ByteStream:
        """Open a stream over the best link to a peer. The caller closes or resets it.

        Raises:
            PeerUnreachable: it cannot be.
        """
        return await self.host.open_stream(peer_id, protocol)

    async def open_on_link(self, peer_id: str, protocol: str) -> tuple[Link, ByteStream]:
        """As `open_stream`, and return the link too that the stream is on."""
        return await self.host.open_on_link(peer_id, protocol)

    async def open_bulk(self, peer_id: str, protocol: str) -> tuple[Link, ByteStream]:
        """Open a stream for bulk data over the best link's way, on a connection beside the links.

        Where the peer takes no such connection, or cannot be dialled, it is as `open_on_link`.

        Raises:
            PeerUnreachable: it cannot be opened at all.
        """
        link = self.host.best_link(peer_id)
        if link is not None:
            try:
                routes = self._routes_beside(link)
                return link, await self.host.bulk.open_stream(peer_id, routes, protocol)
            except PeerUnreachable as error:
                logger.debug("{} goes over a link: {}", protocol, error.problem)
        return await self.host.open_on_link(peer_id, protocol)

    def _routes_beside(self, link: Link) -> list[Route]:
        """Return the routes over the interfaces that a link uses, at which the peer listens."""
        member = self.view.get(link.peer_id)
        if link.outbound or member is None:
            # What was dialled once is listened on. Of a peer that has dialled us, its port tells
            # nothing.
            return [link.route] if link.outbound else []
        record = member.record
        ranked = rank_routes(
            record.addresses,
            self.host.interfaces,
            restricted=bool(self._options.interfaces),
            theirs=record.interfaces,
        )
        return [route for route in ranked if route.hardware == link.route.hardware]

    def rate(self, link: Link) -> float | None:
        """Return the newest rate that either end has measured on a link, in bytes per second."""
        return self.host.rate(link)

    def note_rate(self, link: Link, bytes_per_s: float) -> None:
        """Remember what a transfer over a link reached, beyond the connection's end."""
        self.host.note_rate(link, bytes_per_s)

    def status(self) -> ClusterStatus:
        """Render what this node knows by itself: of the links only its own."""
        return self._render({})

    async def full_status(self) -> ClusterStatus:
        """Render the `/v1/cluster` document, for which the others are asked for their links."""
        others = [
            member.record.peer_id
            for member in self.view.members
            if member.state == "alive" and member.record.peer_id != self.peer_id
        ]
        return self._render(await self._link_reports.ask(others))

    def _render(self, reports: Reports) -> ClusterStatus:
        links = {**reports, self.peer_id: self._own_links()}
        return render_status(self.view, self.master, links, trio.current_time())

    def _own_links(self) -> tuple[LinkStatus, ...]:
        return own_links(self.peer_id, self.links, self.rate)

    async def _refresh_regularly(self) -> None:
        while True:
            await trio.sleep(_REFRESH_S)
            self.refresh()
            self._forget_former_members()

    def _forget_former_members(self) -> None:
        """Stop dialling those whom the view has forgotten, unless the user named them."""
        known = frozenset(member.record.peer_id for member in self.view.members)
        for peer_id in self._known_members - known - self._pinned:
            self._discovery.forget(peer_id)
        self._known_members = known

    def _first_record(self, identity: Identity) -> NodeRecord:
        options = self._options
        record = NodeRecord(
            peer_id=identity.peer_id,
            incarnation=identity.incarnation,
            sequence=0,
            cluster=options.cluster,
            host=platform.node(),
            addresses=self.host.addresses,
            interfaces=tuple(each.record() for each in self.host.interfaces),
            roles=options.roles,
            engines=options.engines,
            memory_total=0,
            memory_free=0,
            instances=(),
            api=options.api,
            version=options.version,
            term=identity.term,
            accelerator=options.accelerator,
        )
        return _with_memory(record)

    async def _raise_incarnation(self, heard: int) -> int:
        incarnation = await trio.to_thread.run_sync(self._identity.raise_incarnation, heard)
        record = msgspec.structs.replace(self.own_record, incarnation=incarnation)
        self._membership.update(record)
        return incarnation

    def _take_event(self, event: Event) -> None:
        member = self.view.get(event.peer_id)
        if member is not None and event.peer_id != self.peer_id:
            self._election.take(event)
            if event.change in {Change.GONE, Change.LEFT}:
                self.host.forget_interfaces(event.peer_id)
            else:
                record = member.record
                self.host.know_interfaces(record.peer_id, record.interfaces)
                self._discovery.learn(
                    record.peer_id, record.addresses, record.incarnation, record.interfaces
                )
            if event.change is Change.LEFT:
                self._discovery.left(event.peer_id)
        for listener in self._listeners:
            listener(event)
        self._notify()

    def _take_claim(self, claim: Heartbeat) -> None:
        self._election.heard(claim)

    def _take_standing(self) -> None:
        peer_id, _ = self._election.master or ("", 0)
        record = msgspec.structs.replace(self.own_record, term=self._election.term, master=peer_id)
        self._membership.update(record)
        self._notify()

    def _link_changed(self, link: Link) -> None:
        self._notify()

    def _link_lost(self, link: Link) -> None:
        self._discovery.lost(link.peer_id)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def _stretch_secret(options: ClusterOptions) -> ClusterSecret | None:
    """Return the secret as the transport and discovery need it, and say whether there is one."""
    if options.secret is None:
        logger.info(
            "the cluster {!r} has no secret: anyone on this network can join it. To keep others "
            "out, start every node with the same --secret-file",
            options.cluster,
        )
        return None
    secret = await trio.to_thread.run_sync(stretch, options.secret, options.cluster)
    logger.info("the cluster {!r} is protected: who joins knows its secret", options.cluster)
    return secret


def _with_memory(record: NodeRecord) -> NodeRecord:
    memory = psutil.virtual_memory()
    return msgspec.structs.replace(record, memory_total=memory.total, memory_free=memory.available)
