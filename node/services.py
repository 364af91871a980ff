"""What a node does for others and for its API, connected to its cluster and its engines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import trio

from node.backend import NodeBackend, choose_node
from node.chat.decode import Decoder
from node.chat.ingress import Ingress
from node.chat.on_demand import OnDemand
from node.chat.service import ChatService
from node.cluster import Cluster
from node.config import NodeConfig
from node.instances.manager import InstanceManager
from node.models import ModelStore, watch_models
from node.placement.orders import OrderTaker
from node.placement.service import PlacementService
from node.prefill.planner import Planner
from node.prefill.server import PrefillService
from node.routing import PrefillPolicy
from protocols.chat import PROTOCOL_ID as CHAT_PROTOCOL
from protocols.kv_prefill.messages import PROTOCOL_ID as PREFILL_PROTOCOL
from protocols.placement import PROTOCOL_ID as PLACEMENT_PROTOCOL

__all__ = ["Services", "connect"]


@dataclass(frozen=True)
class Services:
    """The parts of a node that answer, for others and for its API."""

    backend: NodeBackend
    orders: OrderTaker
    placement: PlacementService
    _cluster: Cluster
    _store: ModelStore

    async def run(self) -> None:
        """Do what goes on beside the answering of requests, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.placement.run)
            nursery.start_soon(watch_models, self._store, self._cluster.update_models)


def connect(
    config: NodeConfig, cluster: Cluster, instances: InstanceManager, store: ModelStore
) -> Services:
    """Serve other nodes with this node's engines, and return what its API is served from."""
    policy = PrefillPolicy(floor=config.remote_prefill_min_tokens, overlap=config.overlap)
    planner = Planner(cluster, instances, policy)
    decoder = Decoder(lambda model: instances.find(model, "decode"), planner)
    prefills = PrefillService(
        lambda model: instances.find(model, "prefill"),
        cluster.host.warden,
        overlap=config.overlap,
        interface_of=cluster.host.interface_of,
    )
    orders = OrderTaker(cluster, instances, store, config.memory)
    placement = PlacementService(cluster, orders)
    cluster.set_handler(PREFILL_PROTOCOL, prefills.serve, bulk=True)
    cluster.set_handler(CHAT_PROTOCOL, ChatService(decoder.answer).serve)
    cluster.set_handler(PLACEMENT_PROTOCOL, placement.serve)
    ingress = Ingress(
        cluster.peer_id,
        decoder.answer,
        OnDemand(cluster, placement.ask).ready,
        partial(choose_node, cluster),
        cluster.open_stream,
    )
    backend = NodeBackend(cluster, instances, ingress, placement.ask)
    return Services(backend, orders, placement, cluster, store)
