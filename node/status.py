"""The `/v1/cluster` document, which is also what `baton status --json` prints: a contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from node.election.terms import round_of
from node.links import Link
from node.membership.view import ClusterView, Member, State
from node.routes import peer_address
from protocols.engine import EngineName
from protocols.gossip import InstanceRecord, InstanceState, InterfaceClass, InterfaceRecord, Role

__all__ = ["ClusterStatus", "render_status"]


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
    state: InstanceState
    load: int
    reason: str
    max_context: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


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
    version: str


class LinkStatus(msgspec.Struct, frozen=True):
    """A connection of this node's; other nodes' links are theirs to report."""

    source: str = msgspec.field(name="from")
    to: str
    klass: InterfaceClass = msgspec.field(name="class")
    address: str
    mb_per_s: float | None
    """Measured on transfers; null before the first."""
    rtt_ms: float | None
    in_use: bool
    """Whether it is the link that the next stream takes."""
    interface: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """The whole document."""

    cluster: str
    self_id: str = msgspec.field(name="self")
    master: MasterStatus | None
    nodes: tuple[NodeStatus, ...]
    links: tuple[LinkStatus, ...]


def render_status(
    view: ClusterView,
    master: tuple[str, int] | None,
    links: Iterable[Link],
    bytes_per_s: Callable[[Link], float | None],
) -> ClusterStatus:
    """Render the view of this node.

    Args:
        view: the members.
        master: peer id and term of the master, if there is one.
        links: open links, the best of each peer first.
        bytes_per_s: the rate last measured over a link, if one was.
    """
    in_use: set[str] = set()
    rows: list[LinkStatus] = []
    for link in links:
        rate = bytes_per_s(link)
        rows.append(
            LinkStatus(
                source=view.self_id,
                to=link.peer_id,
                klass=link.route.klass,
                address=link.route.address,
                mb_per_s=round(rate / 1e6, 3) if rate is not None else None,
                rtt_ms=round(link.rtt_s * 1e3, 3) if link.rtt_s is not None else None,
                in_use=link.peer_id not in in_use,
                interface=link.route.interface,
            )
        )
        in_use.add(link.peer_id)
    return ClusterStatus(
        cluster=view.own.cluster,
        self_id=view.self_id,
        master=MasterStatus(*master, round_of(master[1])) if master is not None else None,
        nodes=tuple(_render_node(member) for member in view.members),
        links=tuple(rows),
    )


def _render_node(member: Member) -> NodeStatus:
    record = member.record
    return NodeStatus(
        peer_id=record.peer_id,
        host=record.host,
        state=member.state,
        roles=record.roles,
        engines=record.engines,
        memory=MemoryStatus(record.memory_total, record.memory_free),
        addresses=tuple(peer_address(record.peer_id, each) for each in record.addresses),
        interfaces=tuple(_render_interface(each) for each in record.interfaces),
        instances=tuple(_render_instance(each) for each in record.instances),
        api=record.api,
        version=record.version,
    )


def _render_interface(record: InterfaceRecord) -> InterfaceStatus:
    return InterfaceStatus(
        name=record.name,
        klass=record.klass,
        addresses=record.addresses,
        speed_mbps=record.speed_mbps,
    )


def _render_instance(record: InstanceRecord) -> InstanceStatus:
    return InstanceStatus(
        id=record.id,
        model=record.model,
        base_model=record.base_model,
        engine=record.engine,
        role="both" if set(record.roles) >= {"prefill", "decode"} else "".join(record.roles[:1]),
        state=record.state,
        load=record.load,
        reason=record.reason,
        max_context=record.max_context,
        prefill_tokens_per_s=record.prefill_tokens_per_s,
        decode_tokens_per_s=record.decode_tokens_per_s,
    )
