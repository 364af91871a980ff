"""What a node does for others and for its API, connected to its cluster and its engines."""

from __future__ import annotations

from functools import partial

from node.backend import NodeBackend, choose_node
from node.chat.decode import Decoder
from node.chat.ingress import Ingress
from node.chat.service import ChatService
from node.cluster import Cluster
from node.config import NodeConfig
from node.instances.manager import InstanceManager
from node.prefill.planner import Planner
from node.prefill.server import PrefillService
from node.routing import PrefillPolicy
from protocols.chat import PROTOCOL_ID as CHAT_PROTOCOL
from protocols.kv_prefill.messages import PROTOCOL_ID as PREFILL_PROTOCOL

__all__ = ["connect"]


def connect(config: NodeConfig, cluster: Cluster, instances: InstanceManager) -> NodeBackend:
    """Serve other nodes with this node's engines, and return what its API is served from."""
    policy = PrefillPolicy(floor=config.remote_prefill_min_tokens, overlap=config.overlap)
    planner = Planner(cluster, instances, policy)
    decoder = Decoder(lambda model: instances.find(model, "decode"), planner)
    prefills = PrefillService(
        lambda model: instances.find(model, "prefill"), overlap=config.overlap
    )
    cluster.set_handler(PREFILL_PROTOCOL, prefills.serve)
    cluster.set_handler(CHAT_PROTOCOL, ChatService(decoder.answer).serve)
    ingress = Ingress(
        cluster.peer_id, decoder.answer, partial(choose_node, cluster), cluster.open_stream
    )
    return NodeBackend(cluster, instances, ingress)
