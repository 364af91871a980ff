"""Instances and links, as the HTTP API sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from node.base_models import base_model
from node.chat.failures import refusal
from node.cluster import Cluster
from node.http.backend import Created, CreateInstance, InstanceInfo, LinkInfo, RequestFailed
from node.placement.pairing import find_instance
from protocols.gossip import InstanceRecord, NodeRecord, Role
from protocols.placement import (
    InstanceRef,
    Link,
    MasterRequest,
    Place,
    Placed,
    Refused,
    Remove,
    Reply,
    RoleWish,
    Unlink,
)

__all__ = ["PlacementApi"]

SHOWN_WITHIN_S: Final = 5.0
"""How long an answer waits for this node's view to show what was done."""


class PlacementApi:
    """The part of `node.http.backend.Backend` that is the master's to decide.

    Args:
        cluster: its view is what is listed.
        ask: has the master decide.
    """

    def __init__(self, cluster: Cluster, ask: Callable[[MasterRequest], Awaitable[Reply]]) -> None:
        self._cluster = cluster
        self._ask = ask

    def instances(self) -> Sequence[InstanceInfo]:
        """See `Backend.instances`."""
        return [_info(node, instance) for node, instance in self._cluster.view.instances()]

    async def create_instance(self, wanted: CreateInstance) -> Created:
        """See `Backend.create_instance`."""
        wish = Place(wanted.model, node=wanted.node, engine=wanted.engine, role=wanted.role)
        reply = await self._ask(wish)
        if not isinstance(reply, Placed):
            raise _failed(reply, "node" if _of_the_node(reply) else "model")
        ids = {each.id for each in reply.instances}
        await self._shown(lambda: ids <= {each.id for each in self.instances()})
        infos = tuple(self._described(each) for each in reply.instances)
        return Created(infos, new=reply.created)

    async def delete_instance(self, instance_id: str) -> None:
        """See `Backend.delete_instance`."""
        reply = await self._ask(Remove(instance_id))
        if isinstance(reply, Refused):
            raise _failed(reply, None)
        await self._shown(lambda: instance_id not in {each.id for each in self.instances()})

    def links(self) -> Sequence[LinkInfo]:
        """See `Backend.links`."""
        return [
            self._link_info(prefill, instance)
            for _, instance in self._cluster.view.instances()
            for prefill in instance.links
        ]

    async def create_link(self, prefill: str, decode: str) -> LinkInfo:
        """See `Backend.create_link`."""
        reply = await self._ask(Link(prefill, decode))
        if isinstance(reply, Refused):
            raise _failed(reply, "decode" if decode in reply.reason else "prefill")
        await self._shown(lambda: self._linked(prefill, decode))
        found = find_instance(self._cluster.view, decode)
        if isinstance(found, Refused):
            return LinkInfo(prefill, decode, ready=False)
        return self._link_info(prefill, found[1])

    async def delete_link(self, prefill: str, decode: str) -> None:
        """See `Backend.delete_link`."""
        reply = await self._ask(Unlink(prefill, decode))
        if isinstance(reply, Refused):
            raise _failed(reply, None)
        await self._shown(lambda: not self._linked(prefill, decode))

    def _linked(self, prefill: str, decode: str) -> bool:
        return any(each.prefill == prefill and each.decode == decode for each in self.links())

    def _link_info(self, prefill: str, decode: InstanceRecord) -> LinkInfo:
        found = find_instance(self._cluster.view, prefill)
        ready = not isinstance(found, Refused) and found[1].state == "ready"
        return LinkInfo(prefill, decode.id, ready=ready and decode.state == "ready")

    def _described(self, ref: InstanceRef) -> InstanceInfo:
        found = find_instance(self._cluster.view, ref.id)
        if not isinstance(found, Refused):
            return _info(*found)
        # It is there all the same; its node's next record says more.
        member = self._cluster.view.get(ref.peer_id)
        return InstanceInfo(
            id=ref.id,
            node=ref.peer_id,
            host=member.record.host if member is not None else "",
            model=ref.model,
            base_model=base_model(ref.model),
            engine=ref.engine,
            role=_role(ref.roles),
            state="loading",
        )

    async def _shown(self, condition: Callable[[], bool]) -> None:
        with trio.move_on_after(SHOWN_WITHIN_S):
            await self._cluster.wait_until(lambda _: condition())


def _info(node: NodeRecord, instance: InstanceRecord) -> InstanceInfo:
    return InstanceInfo(
        id=instance.id,
        node=node.peer_id,
        host=node.host,
        model=instance.model,
        base_model=instance.base_model,
        engine=instance.engine,
        role=_role(instance.roles),
        state=instance.state,
        progress=instance.progress,
        load=instance.load,
        reason=instance.reason,
        links=instance.links,
    )


def _role(roles: tuple[Role, ...]) -> RoleWish:
    if set(roles) >= {"prefill", "decode"}:
        return "both"
    return roles[0] if roles else "decode"


def _of_the_node(reply: Reply) -> bool:
    return isinstance(reply, Refused) and reply.code == "unknown_node"


def _failed(reply: Reply, param: str | None) -> RequestFailed:
    refused = reply if isinstance(reply, Refused) else Refused("unreachable", "no such reply")
    return RequestFailed(refusal(refused, param))
