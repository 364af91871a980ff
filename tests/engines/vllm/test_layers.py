"""Telling kinds of cache apart by vLLM's own specs."""

from typing import Any

import pytest

from engines.base import EngineError
from engines.vllm.layers import recognise, uniform_dtype
from protocols.cache import AttentionLayer

pytestmark = pytest.mark.engine


def config_of(*groups: tuple[list[str], Any]) -> Any:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    return KVCacheConfig(
        num_blocks=4,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(names, spec) for names, spec in groups],
    )


def name(number: int) -> str:
    return f"model.layers.{number}.self_attn.attn"


def full(**changes: Any) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    fields = {"block_size": 128, "num_kv_heads": 3, "head_size": 64, "dtype": torch.bfloat16}
    return FullAttentionSpec(**(fields | changes))


def others() -> dict[str, Any]:
    import torch
    from vllm.v1.kv_cache_interface import (
        KVQuantMode,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    shape = {"block_size": 128, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    return {
        "window": SlidingWindowSpec(**shape, sliding_window=128),
        "window in full pages": full(sliding_window=128),
        "chunked": full(attention_chunk_size=128),
        "latent": MLAAttentionSpec(**shape),
        "state": MambaSpec(block_size=128, shapes=((3, 4),), dtypes=(torch.float32,)),
        "quantized": full(dtype=torch.float8_e4m3fn),
        "per-token scales": full(kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD),
        "several tokens an entry": full(tokens_per_state=4),
        "packed by the backend": full(state_content_bytes=100),
        "not causal": full(non_causal=True),
    }


def test_attention_layers_come_in_model_order() -> None:
    names = [name(number) for number in (10, 2, 0, 1, *range(3, 10))]
    layers = recognise(config_of((names, full(head_size_v=32))))
    assert [layer.index for layer in layers] == list(range(11))
    assert layers[0].layout == AttentionLayer(kv_heads=3, k_dim=64, v_dim=32)
    assert (layers[0].group, layers[0].block_size) == (0, 128)
    assert uniform_dtype(layers) == "bfloat16"


def test_layers_of_several_groups() -> None:
    layers = recognise(config_of(([name(1)], full()), ([name(0)], full(num_kv_heads=6))))
    assert [layer.group for layer in layers] == [1, 0]


def test_group_of_different_head_counts() -> None:
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    specs = {name(0): full(), name(1): full(num_kv_heads=6)}
    together = UniformTypeKVCacheSpecs(block_size=128, kv_cache_specs=specs)
    layers = recognise(config_of((list(specs), together)))
    assert [layer.layout for layer in layers] == [
        AttentionLayer(kv_heads=heads, k_dim=64, v_dim=64) for heads in (3, 6)
    ]


@pytest.mark.parametrize(
    "kind",
    [
        "window",
        "window in full pages",
        "chunked",
        "latent",
        "state",
        "quantized",
        "per-token scales",
        "several tokens an entry",
        "packed by the backend",
        "not causal",
    ],
)
def test_other_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(EngineError, match=r"layers\.1\.self_attn") as refusal:
        recognise(config_of(([name(0)], full()), ([name(1)], others()[kind])))
    assert refusal.value.code == "unsupported"


@pytest.mark.parametrize(
    "names", [[], [name(1)], [name(0), name(2)], [name(0), "model.layers.0.cross.attn"]]
)
def test_models_whose_layers_do_not_each_have_a_cache_are_refused(names: list[str]) -> None:
    with pytest.raises(EngineError) as refusal:
        recognise(config_of((names, full())))
    assert refusal.value.code == "unsupported"


@pytest.mark.parametrize("odd", ["model.attn", "model.layers.0.experts.1.attn"])
def test_layers_without_a_number_are_refused(odd: str) -> None:
    with pytest.raises(EngineError, match="does not say which layer"):
        recognise(config_of(([odd], full())))


def test_mixed_dtypes_are_refused() -> None:
    import torch

    layers = recognise(config_of(([name(0)], full()), ([name(1)], full(dtype=torch.float32))))
    with pytest.raises(EngineError, match="different dtypes"):
        uniform_dtype(layers)
