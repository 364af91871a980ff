"""The `/v1/cluster` document, which is also what `baton status --json` prints: a contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from node.election.terms import round_of
from node.links import Link
from node.membership.view import ClusterView, Member, State
from node.routes import peer_address
from protocols.engine import EngineName
from protocols.gossip import (
    Accelerator,
    InstanceRecord,
    InstanceState,
    InterfaceClass,
    InterfaceRecord,
    Role,
)
from protocols.status import LinkStatus

__all__ = ["ClusterStatus", "own_links", "render_status"]


class MasterStatus(msgspec.Struct, frozen=True):
    """Which node is master, and of which term."""

    peer_id: str
    term: int
    """Unique to the master's claim, and higher than that of any earlier one."""
    round: int
    """The part of the term that counts elections."""


class MemoryStatus(msgspec.Struct, frozen=True):
    """Bytes."""

    total: int
    free: int


class InterfaceStatus(msgspec.Struct, frozen=True):
    """A network interface of a node."""

    name: str
    klass: InterfaceClass = msgspec.field(name="class")
    addresses: tuple[str, ...]
    speed_mbps: int


class InstanceStatus(msgspec.Struct, frozen=True):
    """A model on a node."""

    id: str
    model: str
    base_model: str
    engine: EngineName
    role: str
    """`prefill`, `decode` or `both`."""
    state: InstanceState | Literal["unreachable"]
    """`unreachable` while its node is not alive: no request is sent there."""
    load: int
    """Requests that it works on or has queued."""
    reason: str
    """Why it is not ready; empty otherwise."""
    max_context: int
    """Tokens; 0 until it is loaded."""
    prefill_tokens_per_s: float
    """As last measured; 0 before."""
    decode_tokens_per_s: float
    progress: float
    """How far loading is, from 0 to 1."""
    links: tuple[str, ...]
    """Ids of the only instances that may prefill for it; empty for any."""


class NodeStatus(msgspec.Struct, frozen=True):
    """A member of the cluster."""

    peer_id: str
    host: str
    state: State
    roles: tuple[Role, ...]
    engines: tuple[EngineName, ...]
    memory: MemoryStatus
    addresses: tuple[str, ...]
    """Multiaddrs with the peer id, as `--peer` takes them."""
    interfaces: tuple[InterfaceStatus, ...]
    instances: tuple[InstanceStatus, ...]
    api: str
    """Where its HTTP API listens, as host:port."""
    version: str
    last_seen_s: float
    """Seconds since anything was heard of it; 0 for the node that answers."""
    accelerator: Accelerator
    master: str
    """Peer id of the master that it follows; empty for none. Not all the same during a split."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The whole document."""

    cluster: str
    self_id: str = msgspec.field(name="self")
    master: MasterStatus | None
    nodes: tuple[NodeStatus, ...]
    links: tuple[LinkStatus, ...]
    links_missing_from: tuple[str, ...] = ()
    """Peer ids of the nodes that are alive and did not tell of their links in time."""


def own_links(
    self_id: str, links: Iterable[Link], bytes_per_s: Callable[[Link], float | None]
) -> tuple[LinkStatus, ...]:
    """Return what this node tells of its links.

    Args:
        self_id: this node's peer id.
        links: open links.
        bytes_per_s: the rate last measured over a link, if one was.
    """
    return tuple(_render_link(self_id, link, bytes_per_s(link)) for link in links)


def render_status(
    view: ClusterView,
    master: tuple[str, int] | None,
    links: Mapping[str, tuple[LinkStatus, ...]],
    now: float,
) -> ClusterStatus:
    """Render the view of this node.

    Args:
        view: the members.
        master: peer id and term of the master, if there is one.
        links: what each node that answered told of its links, this one included.
        now: seconds, by the clock that the view is called with.
    """
    nodes = tuple(_render_node(member, now, view.self_id) for member in view.members)
    alive = {node.peer_id for node in nodes if node.state == "alive"}
    return ClusterStatus(
        cluster=view.own.cluster,
        self_id=view.self_id,
        master=MasterStatus(*master, round_of(master[1])) if master is not None else None,
        nodes=nodes,
        links=tuple(link for peer_id in sorted(links) for link in links[peer_id]),
        links_missing_from=tuple(sorted(alive - set(links))),
    )


def _render_link(self_id: str, link: Link, rate: float | None) -> LinkStatus:
    return LinkStatus(
        source=self_id,
        to=link.peer_id,
        klass=link.route.klass,
        address=link.route.address,
        mb_per_s=round(rate / 1e6, 3) if rate is not None else None,
        rtt_ms=round(link.rtt_s * 1e3, 3) if link.rtt_s is not None else None,
        in_use=link.in_use,
        interface=link.route.interface,
    )


def _render_node(member: Member, now: float, self_id: str) -> NodeStatus:
    record = member.record
    unseen_s = 0.0 if record.peer_id == self_id else max(0.0, now - member.seen_at)
    return NodeStatus(
        peer_id=record.peer_id,
        host=record.host,
        state=member.state,
        roles=record.roles,
        engines=record.engines,
        memory=MemoryStatus(record.memory_total, record.memory_free),
        addresses=tuple(peer_address(record.peer_id, each) for each in record.addresses),
        interfaces=tuple(_render_interface(each) for each in record.interfaces),
        instances=tuple(
            _render_instance(each, available=member.state == "alive") for each in record.instances
        ),
        api=record.api,
        version=record.version,
        last_seen_s=round(unseen_s, 1),
        accelerator=record.accelerator,
        master=record.master,
    )


def _render_interface(record: InterfaceRecord) -> InterfaceStatus:
    return InterfaceStatus(
        name=record.name,
        klass=record.klass,
        addresses=record.addresses,
        speed_mbps=record.speed_mbps,
    )


def _render_instance(record: InstanceRecord, *, available: bool) -> InstanceStatus:
    return InstanceStatus(
        id=record.id,
        model=record.model,
        base_model=record.base_model,
        engine=record.engine,
        role="both" if set(record.roles) >= {"prefill", "decode"} else "".join(record.roles[:1]),
        state=record.state if available else "unreachable",
        load=record.load,
        reason=record.reason,
        max_context=record.max_context,
        prefill_tokens_per_s=record.prefill_tokens_per_s,
        decode_tokens_per_s=record.decode_tokens_per_s,
        progress=record.progress,
        links=record.links,
    )
