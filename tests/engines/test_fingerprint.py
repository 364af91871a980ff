from typing import Any

import pytest

from engines.config import ConfigError
from engines.fingerprint import fingerprint

QWEN: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "sliding_window": None,
}


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in QWEN.items() if key not in keys}


@pytest.mark.parametrize(
    "same",
    [
        {**QWEN, "dtype": "float16", "torch_dtype": "float16"},
        {**QWEN, "quantization": {"bits": 4, "group_size": 64}},
        {**QWEN, "quantization_config": {"quant_method": "fp8"}},
        {**QWEN, "rms_norm_eps": 9.999999974752427e-07},
        {**QWEN, "rope_theta": 1e6},
        {
            **without("rope_theta", "rope_scaling"),
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        },
        {**QWEN, "layer_types": ["full_attention"] * 28, "sliding_window": 4096},
        {"model_type": "qwen3", "text_config": {**QWEN, "model_type": "qwen3_text"}},
    ],
)
def test_one_model_in_other_words(same: dict[str, Any]):
    assert fingerprint(same) == fingerprint(QWEN)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen2"},
        {"hidden_size": 2048},
        {"num_hidden_layers": 27},
        {"num_attention_heads": 32},
        {"num_key_value_heads": 4},
        {"head_dim": 64},
        {"rms_norm_eps": 1e-5},
        {"vocab_size": 151937},
        {"rope_theta": 10000},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"partial_rotary_factor": 0.5},
        {"sliding_window": 4096},
        {"layer_types": ["full_attention", "linear_attention"] * 14},
        {"kv_lora_rank": 512},
    ],
)
def test_another_model(change: dict[str, Any]):
    assert fingerprint({**QWEN, **change}) != fingerprint(QWEN)


def test_defaults_are_what_the_shapes_imply():
    implied = without("head_dim", "num_key_value_heads")
    assert fingerprint(implied) == fingerprint({**QWEN, "head_dim": 64, "num_key_value_heads": 16})


def test_it_is_stable_across_runs():
    assert fingerprint(QWEN) == "7456506fd6658e1f9b62a7df4f6886e5"


@pytest.mark.parametrize("key", ["model_type", "hidden_size", "num_hidden_layers"])
def test_a_config_that_is_none(key: str):
    with pytest.raises(ConfigError, match=key):
        fingerprint(without(key))
