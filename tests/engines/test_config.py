import json
from pathlib import Path
from typing import Any

import pytest

from engines.config import (
    ConfigError,
    context_length,
    layer_types,
    read_config,
    rope_parameters,
    text_config,
)


def test_both_spellings_of_rope_are_one():
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": None}}
    new = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0}}
    assert rope_parameters(old) == rope_parameters(new)
    assert rope_parameters(old)["all"] == {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0}


def test_rope_parameters_win_over_the_top_level():
    both = {"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e4}
    assert rope_parameters(both)["all"]["rope_theta"] == 1e6


def test_rope_that_differs_by_layer_kind():
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None}
    new = {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        }
    }
    assert rope_parameters(old) == rope_parameters(new)


def test_rope_settings_at_the_top_level_are_taken_in():
    rope = rope_parameters({"rope_theta": 1e4, "partial_rotary_factor": 0.25})["all"]
    assert rope["partial_rotary_factor"] == 0.25
    assert rope_parameters({"partial_rotary_factor": 1.0}) == rope_parameters({})
    assert rope_parameters({"rope_scaling": {"type": "su"}})["all"]["rope_type"] == "longrope"


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        (
            {
                "max_position_embeddings": 40960,
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            131072,
        ),
    ],
)
def test_context_length(config: dict[str, Any], length: int):
    assert context_length(config) == length


@pytest.mark.parametrize("config", [{}, {"max_position_embeddings": 0}, {"n_positions": "many"}])
def test_an_unknown_context_length_is_an_error(config: dict[str, Any]):
    with pytest.raises(ConfigError, match="context length"):
        context_length(config)


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({}, "FFFF"),
        ({"sliding_window": 128}, "SSSS"),
        ({"sliding_window": 128, "use_sliding_window": False}, "FFFF"),
        ({"sliding_window": 128, "max_window_layers": 3}, "FFFS"),
        ({"sliding_window": 128, "sliding_window_pattern": 2}, "SFSF"),
        ({"full_attention_interval": 4}, "LLLF"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "FSFS"),
    ],
)
def test_layer_types(config: dict[str, Any], kinds: str):
    types = layer_types({"num_hidden_layers": 4, **config})
    assert "".join(kind[0].upper() for kind in types) == kinds


def test_nested_settings_win():
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    assert text_config(config)["model_type"] == "gemma3_text"


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not JSON"), ("[]", "not a JSON object"), (None, "no checkpoint")],
)
def test_unreadable_configs(tmp_path: Path, content: str | None, message: str):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)


def test_read_config(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert read_config(tmp_path) == {"model_type": "llama"}
