"""What an engine of a node can run, and the memory that it needs for it. Pure."""

from __future__ import annotations

from typing import Final

from protocols.engine import EngineName
from protocols.gossip import Accelerator, ModelRecord, NodeRecord, Quantization

__all__ = ["available_bytes", "gib", "needed_bytes", "quantization_obstacle"]

_VLLM_NVIDIA: Final = frozenset[Quantization](
    {
        "none",
        "gptq",
        "awq",
        "fp8",
        "nvfp4",
        "mxfp4",
        "compressed-tensors",
        "bitsandbytes",
    }
)
_VLLM_CPU: Final = frozenset[Quantization]({"none", "gptq", "awq", "compressed-tensors"})
"""Source of both: https://docs.vllm.ai/en/latest/features/quantization (supported hardware)."""
_MLX: Final = frozenset[Quantization]({"none", "mlx"})
"""mlx-lm converts some others while it loads them, but not every model of them."""

_LABELS: Final[dict[Quantization, str]] = {
    "mlx": "MLX-quantized",
    "gptq": "GPTQ-quantized",
    "awq": "AWQ-quantized",
    "fp8": "FP8-quantized",
    "nvfp4": "NVFP4-quantized",
    "mxfp4": "MXFP4-quantized",
    "compressed-tensors": "quantized with compressed-tensors",
    "bitsandbytes": "quantized with bitsandbytes",
    "gguf": "a GGUF file",
    "other": "quantized in a way that is not known here",
}
_ENGINE_NAMES: Final[dict[EngineName, str]] = {"mlx": "MLX", "vllm": "vLLM"}
_PLACES: Final[dict[Accelerator, str]] = {
    "apple": "on Apple silicon",
    "nvidia": "on NVIDIA",
    "cpu": "on a CPU",
}

_GIB: Final = 1 << 30
_MIN_CACHE_BYTES: Final = _GIB
_CACHE_SHARE: Final = 5
"""A KV cache is given at least one part in this many of the weights."""
_PROCESS_BYTES: Final[dict[EngineName, int]] = {"mlx": 400 << 20, "vllm": 800 << 20}
"""What an engine's process needs before it has loaded anything."""
_MAX_HEADROOM_BYTES: Final = 2 * _GIB
_HEADROOM_SHARE: Final = 10


def quantization_obstacle(
    engine: EngineName, accelerator: Accelerator, quantization: Quantization
) -> str:
    """Return why an engine cannot run weights that are stored so; empty when it can."""
    if engine == "mlx":
        can = quantization in _MLX and (quantization == "none" or accelerator != "nvidia")
    else:
        can = quantization in (_VLLM_NVIDIA if accelerator == "nvidia" else _VLLM_CPU)
    if can:
        return ""
    label = _LABELS.get(quantization, quantization)
    return f"it is {label}, which {_ENGINE_NAMES[engine]} {_PLACES[accelerator]} does not run"


def needed_bytes(engine: EngineName, accelerator: Accelerator, model: ModelRecord) -> int:
    """Return the memory that an instance of a model is going to need, its KV cache included."""
    weights = model.weight_bytes
    # MLX computes in float32 on a CPU, where bfloat16 is several times slower.
    if engine == "mlx" and accelerator == "cpu" and model.quantization == "none":
        weights *= 2
    return weights + max(_MIN_CACHE_BYTES, weights // _CACHE_SHARE) + _PROCESS_BYTES[engine]


def available_bytes(node: NodeRecord) -> int:
    """Return how much of a node's free memory new instances may take, loading ones counted out."""
    headroom = min(_MAX_HEADROOM_BYTES, node.memory_total // _HEADROOM_SHARE)
    on_disk = {model.name: model for model in node.models}
    loading = 0
    for instance in node.instances:
        model = on_disk.get(instance.model)
        if instance.state in ("loading", "restarting") and model is not None:
            needed = needed_bytes(instance.engine, node.accelerator, model)
            loading += int(needed * (1 - instance.progress))
    return max(0, node.memory_free - headroom - loading)


def gib(size: int) -> str:
    """Return a size in words."""
    return f"{size / _GIB:.1f} GiB"
