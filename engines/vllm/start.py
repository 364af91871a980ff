"""Starting vLLM on a checkpoint, and finding out how its caches are laid out."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from loguru import logger

from engines.base import EngineError
from engines.config import ConfigError
from engines.fingerprint import fingerprint
from engines.vllm.handoff import Handoff, OpenLayer
from engines.vllm.layers import PagedLayer, recognise, uniform_dtype
from engines.vllm.layouts import CacheReader, PackedReader, StandardReader
from engines.vllm.packing import probe
from protocols.cache import AttentionLayer, CacheLayout
from protocols.engine import Load

if TYPE_CHECKING:
    import torch
    from vllm import LLMEngine

__all__ = ["open_caches", "read_config", "start", "stop"]

CPU_STEP_TOKENS: Final = 768
"""Tokens of prefill per step: about half a second on two cores, which a cancelled request may wait
for. Larger steps are faster: they cost fewer barriers, and fewer chunks for the nodes to handle."""
GPU_STEP_TOKENS: Final = 4096
CPU_CACHE_BYTES: Final = 1 << 30
CPU_SEQUENCES: Final = 16

_START_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What model code is seen to raise on a checkpoint that it does not expect."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the checkpoint's parsed config.json.

    Raises:
        EngineError: `bad_request`, if there is none that can be read.
    """
    file = path / "config.json"
    try:
        config = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        fingerprint(config)
    except (OSError, msgspec.DecodeError, ConfigError) as error:
        raise EngineError("bad_request", f"{path} is no checkpoint: {error}") from error
    return config


def start(request: Load, key: str) -> LLMEngine:
    """Start vLLM in this thread; the environment has been prepared.

    Args:
        request: what to load. Without a budget the CPU gets 1 GiB for caches and a GPU what vLLM
            takes by itself; without a cap the context is as long as the model and caches allow.
        key: of the hand-off that vLLM's connector joins.

    Raises:
        EngineError: vLLM cannot run this checkpoint here.
    """
    from vllm import EngineArgs, LLMEngine
    from vllm.exceptions import VLLMError
    from vllm.platforms import current_platform

    from engines.vllm.connector import transfer_config

    on_cpu = current_platform.is_cpu()
    arguments: dict[str, Any] = {
        "model": request.path,
        "dtype": "bfloat16",
        "max_model_len": request.max_context or -1,
        "enforce_eager": on_cpu,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "async_scheduling": False,
        "distributed_executor_backend": "uni",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "max_num_batched_tokens": CPU_STEP_TOKENS if on_cpu else GPU_STEP_TOKENS,
        "kv_transfer_config": transfer_config(key),
    }
    if cache_bytes := request.memory_bytes or (CPU_CACHE_BYTES if on_cpu else 0):
        arguments["kv_cache_memory_bytes"] = cache_bytes
    if on_cpu:
        arguments["max_num_seqs"] = CPU_SEQUENCES
    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments))
    except MemoryError as error:
        raise EngineError("out_of_memory", f"loading {request.model}: {error}") from error
    except (VLLMError, *_START_ERRORS) as error:
        logger.opt(exception=True).error("vLLM did not start")
        raise EngineError("engine", f"vLLM cannot load {request.model}: {error}") from error


def open_caches(handoff: Handoff, config: dict[str, Any]) -> CacheLayout:
    """Recognise the layers of the model that vLLM has loaded, and make them readable.

    Raises:
        EngineError: `unsupported`, if a layer's cache cannot be handed out.
    """
    if handoff.config is None:
        raise EngineError("engine", "vLLM did not make our KV connector")
    layers = recognise(handoff.config)
    if lost := [layer.name for layer in layers if layer.name not in handoff.caches]:
        raise EngineError("engine", f"vLLM registered no cache for {', '.join(lost)}")
    handoff.open_layers(
        {
            layer.name: OpenLayer(
                layer.index, layer.group, _open_reader(layer, handoff.caches[layer.name])
            )
            for layer in layers
        }
    )
    return CacheLayout(
        dtype=uniform_dtype(layers),
        layers=tuple(layer.layout for layer in layers),
        fingerprint=fingerprint(config),
    )


def stop(llm: LLMEngine) -> None:
    """Shut vLLM down and give its memory back."""
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    gc.collect()


def _open_reader(layer: PagedLayer, pages: torch.Tensor) -> CacheReader:
    layout = layer.layout
    assert isinstance(layout, AttentionLayer)
    content = layout.k_dim + layout.v_dim
    heads, page_size = pages.shape[1], pages.shape[2]
    if (
        pages.dim() != 4
        or (heads, pages.shape[3]) != (layout.kv_heads, content)
        or layer.block_size % page_size
    ):
        raise EngineError("unsupported", f"{layer.name} has pages of shape {tuple(pages.shape)}")
    if pages.device.type != "cpu":
        return StandardReader(pages, layer.block_size, layout.k_dim)
    if not pages.is_contiguous() or layout.k_dim != layout.v_dim:
        raise EngineError("unsupported", f"{layer.name} has pages of {pages.stride()} on the CPU")
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = _get_attn_isa(pages.dtype, page_size, layout.k_dim)
    return PackedReader(pages, layer.block_size, probe(page_size, layout.k_dim, pages.dtype, isa))
