"""What a node does when the master orders it to."""

from __future__ import annotations

from functools import partial

import trio
from loguru import logger

from node.cluster import Cluster
from node.errors import ModelNotHere
from node.instances.instance import Instance, InstanceSpec
from node.instances.manager import InstanceManager
from node.models import BUNDLED_MODEL, ModelStore
from protocols.placement import (
    Done,
    InstanceRef,
    LinkOrder,
    LoadOrder,
    Order,
    Placed,
    Refused,
    Reply,
    UnloadOrder,
)

__all__ = ["OrderTaker"]


class OrderTaker:
    """Carries orders out, each once, and none of a master whose time is over.

    Args:
        cluster: knows the term and the master of it.
        instances: of this node.
        store: this node's checkpoints.
        memory_bytes: for the KV cache of each instance; 0 leaves it to the engine.
    """

    def __init__(
        self,
        cluster: Cluster,
        instances: InstanceManager,
        store: ModelStore,
        memory_bytes: int = 0,
    ) -> None:
        self._cluster = cluster
        self._instances = instances
        self._store = store
        self._memory_bytes = memory_bytes
        self._term = 0
        self._loading = trio.Lock()

    async def carry_out(self, order: Order, sender: str) -> Reply:
        """Do what an order says.

        Args:
            order: it may have come before, and is then not carried out twice.
            sender: peer id of the node that sent it.
        """
        stale = self._stale(order.term, sender)
        if stale is not None:
            logger.warning("an order of {} is not carried out: {}", sender, stale.reason)
            return stale
        match order:
            case LoadOrder():
                async with self._loading:
                    return await self._load(order)
            case UnloadOrder():
                if await self._instances.remove(order.instance):
                    logger.info("{} was removed, by order of the master", order.instance)
                    return Done()
                return Refused("unknown_instance", f"there is no instance {order.instance} here")
            case LinkOrder():
                return self._link(order)

    def _stale(self, term: int, sender: str) -> Refused | None:
        self._term = max(self._term, self._cluster.term)
        if term < self._term:
            return Refused("stale_term", f"it is of term {term}, and term {self._term} has begun")
        master = self._cluster.master
        if master is not None and master[1] == term and master[0] != sender:
            return Refused("stale_term", f"{master[0]} is the master of term {term}")
        self._term = term
        return None

    async def _load(self, order: LoadOrder) -> Reply:
        existing = self._existing(order)
        if existing is not None and existing.state != "failed":
            existing.add_roles(order.roles)
            return Placed((self._ref(existing),), created=False)
        own = self._cluster.own_record
        if order.engine not in own.engines:
            return Refused("incompatible", f"{own.host} does not run {order.engine}")
        if not set(order.roles) <= set(own.roles):
            allowed = " and ".join(own.roles) or "nothing"
            return Refused("role", f"{own.host} is set to do {allowed}")
        try:
            await trio.to_thread.run_sync(self._check, order.model)
        except ModelNotHere as error:
            return Refused("not_on_disk", error.problem, error.remedy)
        if existing is not None:
            await self._instances.remove(existing.id)
        spec = InstanceSpec(order.model, order.engine, order.roles, self._memory_bytes)
        instance = self._instances.add(spec, partial(self._store.ensure, order.model))
        logger.info("loading {} with {}, by order of the master", order.model, instance.id)
        return Placed((self._ref(instance),))

    def _check(self, model: str) -> None:
        # By name alone: what a peer sends is no path into this machine.
        if model != BUNDLED_MODEL and model not in self._store.names():
            raise ModelNotHere(f"there is no model {model} in {self._store.root}")
        self._store.check(model)

    def _existing(self, order: LoadOrder) -> Instance | None:
        wanted = order.model, order.engine
        return next(
            (each for each in self._instances if (each.spec.model, each.spec.engine) == wanted),
            None,
        )

    def _link(self, order: LinkOrder) -> Reply:
        instance = self._instances.get(order.decode)
        if instance is None:
            return Refused("unknown_instance", f"there is no instance {order.decode} here")
        if instance.set_link(order.prefill, linked=order.linked):
            what = "linked to" if order.linked else "no longer linked to"
            logger.info("{} is {} {} for prefill", order.decode, what, order.prefill)
        return Done()

    def _ref(self, instance: Instance) -> InstanceRef:
        spec = instance.spec
        return InstanceRef(self._cluster.peer_id, instance.id, spec.model, spec.engine, spec.roles)
