"""What kind of cache each layer of a loaded model has, read from vLLM's own cache specs.

This is the one place that tells kinds apart. A layer that is not recognised is refused: a cache
handed out under the wrong kind would be used, and nobody would notice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from engines.base import EngineError
from protocols.cache import AttentionLayer, DType, LayerLayout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheSpec

__all__ = ["PagedLayer", "recognise", "uniform_dtype"]

_NUMBER = re.compile(r"\.(\d+)\.")


class PagedLayer(msgspec.Struct, frozen=True):
    """One layer's cache in vLLM's pages."""

    name: str
    """vLLM's name of the attention module."""
    index: int
    """The layer's number in the model."""
    group: int
    """Whose block table it follows."""
    block_size: int
    """Tokens per block of that table."""
    dtype: DType
    layout: LayerLayout


def recognise(config: KVCacheConfig) -> list[PagedLayer]:
    """Return every layer in model order.

    Raises:
        EngineError: `unsupported`, if a layer's cache is of a kind that cannot be handed out.
    """
    layers = sorted(
        (
            _recognise_layer(name, group, spec)
            for group, names in enumerate(config.kv_cache_groups)
            for name, spec in _specs(names.layer_names, names.kv_cache_spec)
        ),
        key=lambda layer: layer.index,
    )
    if [layer.index for layer in layers] != list(range(len(layers))):
        raise EngineError(
            "unsupported",
            "layers without a cache of their own (shared or stateless) cannot be handed out yet: "
            f"only {', '.join(layer.name for layer in layers)} have one",
        )
    if not layers:
        raise EngineError("unsupported", "this model keeps no KV cache")
    return layers


def uniform_dtype(layers: list[PagedLayer]) -> DType:
    """Return the dtype that all layers have.

    Raises:
        EngineError: `unsupported`, if they differ.
    """
    dtypes: set[DType] = {layer.dtype for layer in layers}
    if len(dtypes) != 1:
        raise EngineError("unsupported", f"layers cached in different dtypes: {sorted(dtypes)}")
    return dtypes.pop()


def _specs(names: list[str], spec: KVCacheSpec) -> Iterator[tuple[str, KVCacheSpec]]:
    """Give each layer of a group its own spec: a group may hold layers of several head counts."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    for name in names:
        yield name, spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def _recognise_layer(name: str, group: int, spec: KVCacheSpec) -> PagedLayer:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    # The exact type: latent (MLA), sink and other attentions are subclasses of it.
    if type(spec) is not FullAttentionSpec:
        raise _unsupported(name, f"its cache is a {type(spec).__name__}")
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        raise _unsupported(name, "it attends to a window of the tokens only")
    if spec.num_head_slots is not None or spec.state_content_bytes is not None:
        raise _unsupported(name, "its pages are packed by the attention backend")
    if spec.tokens_per_state != 1 or spec.non_causal:
        raise _unsupported(name, "its entries are not one token's each")
    return PagedLayer(
        name=name,
        index=_number(name),
        group=group,
        block_size=spec.block_size,
        dtype=_dtype(name, spec),
        layout=AttentionLayer(
            kv_heads=spec.num_kv_heads, k_dim=spec.head_size, v_dim=spec.head_size_v
        ),
    )


def _number(name: str) -> int:
    numbers = _NUMBER.findall(name)
    if len(numbers) != 1:
        raise _unsupported(name, "its name does not say which layer of the model it is")
    return int(numbers[0])


def _dtype(name: str, spec: AttentionSpec) -> DType:
    import torch

    known: dict[torch.dtype, DType] = {
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
        torch.float32: "float32",
    }
    if spec.dtype not in known or spec.kv_quant_mode.value:
        raise _unsupported(name, f"its cache is quantized ({spec.dtype})")
    return known[spec.dtype]


def _unsupported(name: str, why: str) -> EngineError:
    return EngineError("unsupported", f"the cache of {name} cannot be handed out yet: {why}")
