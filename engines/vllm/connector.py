"""Our KV connector: vLLM calls it around every step, and after every attention layer of one.

vLLM makes two of it, one beside the scheduler and one beside the worker. The first turns each
step's schedule into slices that requests want, the second hands them out as layers are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from engines.vllm.handoff import Slice, handoffs
from engines.vllm.schedule import BlockTables

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

__all__ = ["HandoffConnector", "StepSlices", "transfer_config"]

_KEY = "handoff"


def transfer_config(key: str) -> dict[str, Any]:
    """Return the `kv_transfer_config` that makes vLLM use this connector for hand-off `key`."""
    return {
        "kv_connector": HandoffConnector.__name__,
        "kv_connector_module_path": __name__,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {_KEY: key},
    }


@dataclass
class StepSlices(KVConnectorMetadata):
    """What a step is to hand out."""

    slices: list[Slice] = field(default_factory=list)


class HandoffConnector(KVConnectorBase_V1, SupportsHMA):
    """Hands out caches as they are computed; loads none and keeps no block alive."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._handoff = handoffs.find(self._kv_transfer_config.get_from_extra_config(_KEY, ""))
        self._handoff.config = kv_cache_config
        self._tables = BlockTables()

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Keep attention layers out of CUDA graphs, where `save_kv_layer` would not be called."""
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        """False: nothing is read from a block once its step is over."""
        return False

    # Beside the scheduler.

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Offer no cache from elsewhere."""
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Do nothing: the schedule says all that is needed."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepSlices:
        """Find out what the step about to run will hand out."""
        planned = map(self._handoff.plan, self._tables.advance(scheduler_output))
        return StepSlices([part for part in planned if part is not None])

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Let the request's blocks go."""
        self._tables.forget(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Let the request's blocks go."""
        return self.request_finished(request, [])

    # Beside the worker.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Show the engine the pages."""
        self._handoff.caches = kv_caches

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: object) -> None:
        """Do nothing: no cache comes from elsewhere."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: no cache comes from elsewhere."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: object,
    ) -> None:
        """Hand out a layer that has just been computed."""
        if slices := self._slices():
            self._handoff.layer_computed(layer_name, slices)

    def wait_for_save(self) -> None:
        """Finish the step."""
        if slices := self._slices():
            self._handoff.step_computed(slices)

    def _slices(self) -> list[Slice]:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepSlices)
        return metadata.slices
