"""The master's part: it decides, gives orders, and remembers what the cluster does not show yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio
from loguru import logger

from node.base_models import base_model
from node.cluster import Cluster
from node.placement.decide import AlreadyLoaded, Plan, PlannedLoad, place
from node.placement.ledger import Ledger
from node.placement.pairing import find_instance, mismatch
from protocols.placement import (
    InstanceRef,
    Link,
    LinkOrder,
    LoadOrder,
    MasterRequest,
    Order,
    Place,
    Placed,
    Refused,
    Remove,
    Reply,
    Unlink,
    UnloadOrder,
)

__all__ = ["Master", "SendOrder"]

SendOrder: TypeAlias = Callable[[str, Order], Awaitable[Reply]]
"""Gives an order to the node of a peer id; a node that cannot be reached is a `Refused`."""

MAX_NODES: Final = 3
"""Nodes that are asked for one placement before it is given up."""


class Master:
    """Handles requests to the master while this node is it. All it knows is gossip and a ledger.

    Args:
        cluster: its view and its election.
        send_order: gives orders.
    """

    def __init__(self, cluster: Cluster, send_order: SendOrder) -> None:
        self._cluster = cluster
        self._send_order = send_order
        self._ledger = Ledger()
        self._locks: dict[str, trio.Lock] = {}

    async def handle(self, request: MasterRequest) -> Reply:
        """Decide on a request and have it carried out."""
        master = self._cluster.master
        if master is None or master[0] != self._cluster.peer_id:
            return Refused("not_master", "this node is not the master")
        term = master[1]
        match request:
            case Place():
                async with self._one_at_a_time(base_model(request.model)):
                    return await self._place(request, term)
            case Remove():
                return await self._remove(request.instance, term)
            case Link():
                return await self._link(request.prefill, request.decode, term)
            case Unlink():
                return await self._unlink(request.prefill, request.decode, term)

    async def _place(self, wish: Place, term: int) -> Reply:
        """Have a model loaded, on another node where the first one cannot do it after all."""
        failed: dict[str, str] = {}
        reply: Reply = Refused("unreachable", f"no node can load {wish.model}")
        while len(failed) < MAX_NODES:
            ordered = self._ledger.outstanding(self._cluster.view, trio.current_time())
            decision = place(self._cluster.view, wish, ordered, failed)
            if isinstance(decision, Refused):
                return decision
            if isinstance(decision, AlreadyLoaded):
                return Placed((decision.instance,), created=False)
            reply = await self._order_loads(decision, term)
            if not isinstance(reply, Refused) or reply.code == "stale_term":
                break
            first = decision.loads[0]
            logger.warning("{} does not load {}: {}", first.host, first.model, reply.text)
            failed[first.peer_id] = reply.text
        return reply

    async def _order_loads(self, plan: Plan, term: int) -> Reply:
        now = trio.current_time()
        # All at once, for the next decision to know of them.
        numbers = [self._ledger.add(load, now) for load in plan.loads]
        made: list[InstanceRef] = []
        created = False
        for number, load in zip(numbers, plan.loads, strict=True):
            reply = await self._order_load(load, term)
            if isinstance(reply, Placed):
                made += reply.instances
                created = created or reply.created
                self._ledger.named(number, reply.instances[0].id, trio.current_time())
                continue
            self._ledger.drop(number)
            if not made:
                for other in numbers:
                    self._ledger.drop(other)
                return reply
            logger.warning("{} is not loaded {}: {}", load.model, load.reason, reply)
        return Placed(tuple(made), created)

    async def _order_load(self, load: PlannedLoad, term: int) -> Reply:
        logger.info("{} loads {} with {}, {}", load.host, load.model, load.engine, load.reason)
        order = LoadOrder(term, load.model, load.engine, load.roles)
        reply = await self._send_order(load.peer_id, order)
        if isinstance(reply, Placed) and not reply.instances:
            return Refused("unreachable", f"{load.host} has answered without an instance")
        return reply

    async def _remove(self, instance_id: str, term: int) -> Reply:
        found = find_instance(self._cluster.view, instance_id)
        if isinstance(found, Refused):
            return found
        node, _ = found
        reply = await self._send_order(node.peer_id, UnloadOrder(term, instance_id))
        self._ledger.forget(instance_id)
        if isinstance(reply, Refused):
            return reply
        for owner, other in list(self._cluster.view.instances()):
            if instance_id in other.links:
                order = LinkOrder(term, instance_id, other.id, linked=False)
                unlinked = await self._send_order(owner.peer_id, order)
                if isinstance(unlinked, Refused):
                    logger.warning("{} keeps a link to nowhere: {}", other.id, unlinked.text)
        return reply

    async def _link(self, prefill_id: str, decode_id: str, term: int) -> Reply:
        prefill = find_instance(self._cluster.view, prefill_id)
        if isinstance(prefill, Refused):
            return prefill
        decode = find_instance(self._cluster.view, decode_id)
        if isinstance(decode, Refused):
            return decode
        if why := mismatch(prefill[1], decode[1]):
            remedy = "link an instance that prefills to one of the same model that decodes"
            return Refused("mismatch", why, remedy)
        order = LinkOrder(term, prefill_id, decode_id, linked=True)
        return await self._send_order(decode[0].peer_id, order)

    async def _unlink(self, prefill_id: str, decode_id: str, term: int) -> Reply:
        decode = find_instance(self._cluster.view, decode_id)
        if isinstance(decode, Refused):
            return decode
        if prefill_id not in decode[1].links:
            return Refused(
                "unknown_link",
                f"{prefill_id} is not linked to {decode_id}",
                "`GET /v1/links` lists the links that there are",
            )
        order = LinkOrder(term, prefill_id, decode_id, linked=False)
        return await self._send_order(decode[0].peer_id, order)

    @asynccontextmanager
    async def _one_at_a_time(self, base: str) -> AsyncIterator[None]:
        """Let one placement of a model, in whatever form, wait for the other."""
        lock = self._locks.setdefault(base, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._locks.pop(base, None)
