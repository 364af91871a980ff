"""The node, as its HTTP API sees it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from node.chat.failures import failure_of, unavailable
from node.chat.ingress import Ingress
from node.cluster import Cluster
from node.errors import BatonError
from node.http.backend import (
    HealthInfo,
    HealthStatus,
    MeasureReport,
    MeasureRequest,
    ModelInfo,
    RequestFailed,
)
from node.instance_api import PlacementApi
from node.instances.manager import InstanceManager
from node.placement.decide import runnable
from node.prefill.engine import measure_prefill
from node.routing import Refusal, choose_decode
from node.status import ClusterStatus
from protocols.chat import ChatEvent, ChatFailed, ChatRequest
from protocols.kv_prefill.messages import pack_tokens
from protocols.placement import MasterRequest, Reply

__all__ = ["NodeBackend", "choose_node"]


def choose_node(cluster: Cluster, model: str, tried: frozenset[str]) -> str | ChatFailed:
    """Return the peer id of the node that answers for `model`, or why there is none."""
    choice = choose_decode(cluster.view, model, cluster.peer_id, tried)
    if not isinstance(choice, Refusal):
        return choice.peer_id
    return unavailable(f"{choice.reason}. Try again later, or see `baton status`.")


class NodeBackend(PlacementApi):
    """Implements `node.http.backend.Backend`.

    Args:
        cluster: its view, and its status.
        instances: of this node.
        ingress: takes requests in.
        ask: has the master decide.
    """

    def __init__(
        self,
        cluster: Cluster,
        instances: InstanceManager,
        ingress: Ingress,
        ask: Callable[[MasterRequest], Awaitable[Reply]],
    ) -> None:
        super().__init__(cluster, ask)
        self._instances = instances
        self._ingress = ingress
        self._first_seen: dict[str, int] = {}

    def models(self) -> Sequence[ModelInfo]:
        """See `Backend.models`."""
        found: dict[str, ModelInfo] = {}
        for _, instance in self._cluster.view.instances():
            known = found.get(instance.model)
            ready = instance.state == "ready" and "decode" in instance.roles
            found[instance.model] = ModelInfo(
                id=instance.model,
                base_model=instance.base_model,
                ready=ready or (known is not None and known.ready),
                created=self._created(instance.model),
            )
        for model in runnable(self._cluster.view):
            if model.name not in found:
                found[model.name] = ModelInfo(
                    id=model.name,
                    base_model=model.base_model,
                    ready=False,
                    created=self._created(model.name),
                    loaded=False,
                )
        return [found[name] for name in sorted(found)]

    def _created(self, model: str) -> int:
        return self._first_seen.setdefault(model, int(time.time()))

    def open_chat(
        self, request: ChatRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
        """See `Backend.open_chat`."""
        return self._ingress.open(request)

    async def cluster(self) -> ClusterStatus:
        """See `Backend.cluster`."""
        return await self._cluster.full_status()

    def health(self) -> HealthInfo:
        """See `Backend.health`."""
        states = {instance.state for instance in self._instances}
        status: HealthStatus = "ok"
        if states & {"failed", "restarting"}:
            status = "degraded"
        elif "loading" in states:
            status = "starting"
        ready = tuple(info.id for info in self.models() if info.ready)
        return HealthInfo(status=status, models=ready, peer_id=self._cluster.peer_id)

    async def measure_prefill(self, request: MeasureRequest) -> MeasureReport:
        """See `Backend.measure_prefill`. Measures an engine of this node."""
        instance = self._instances.find(request.model, "prefill")
        if instance is None:
            raise RequestFailed(
                unavailable(
                    f"No prefill engine of {request.model} is ready on this node. Ask the node "
                    "that has one: `baton status` shows it."
                )
            )
        try:
            tokens = await instance.tokenize(request.id, request.messages)
            end = max(1, len(tokens) - 1)
            seconds = await measure_prefill(instance, request.id, pack_tokens(tokens), end)
        except BatonError as error:
            raise RequestFailed(failure_of(error)) from error
        return MeasureReport(
            model=request.model,
            prompt_tokens=len(tokens),
            engine=instance.spec.engine,
            prefill_s=seconds,
            node=self._cluster.peer_id,
        )
