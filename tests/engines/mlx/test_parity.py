from typing import Any

import pytest

from engines.base import EngineError
from engines.mlx.parity import injection_obstacle, mlx_config

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
}
BY_KIND = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def test_the_old_spelling_is_left_alone():
    config = {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": None}
    assert mlx_config(config) == config


@pytest.mark.engine
def test_what_the_new_spelling_says_is_said_in_the_old():
    spelled = mlx_config({"model_type": "llama", "rope_parameters": YARN})
    assert spelled["rope_parameters"] == YARN
    assert spelled["rope_theta"] == 1e6
    assert spelled["rope_scaling"]["factor"] == 4.0
    assert spelled["rope_scaling"]["type"] == spelled["rope_scaling"]["rope_type"] == "yarn"


@pytest.mark.engine
def test_a_default_rope_has_no_scaling():
    rope = {"rope_type": "default", "rope_theta": 1e5}
    assert "rope_scaling" not in mlx_config({"model_type": "llama", "rope_parameters": rope})


@pytest.mark.engine
def test_layers_with_ropes_of_their_own():
    spelled = mlx_config({"model_type": "gemma3_text", "rope_parameters": BY_KIND})
    assert (spelled["rope_theta"], spelled["rope_local_base_freq"]) == (1e6, 1e4)


@pytest.mark.engine
def test_nested_settings_are_spelled_where_they_are():
    nested = {"model_type": "gemma3_text", "rope_parameters": BY_KIND}
    spelled = mlx_config({"model_type": "gemma3", "text_config": nested})
    assert spelled["text_config"]["rope_theta"] == 1e6
    assert "rope_theta" not in spelled


@pytest.mark.engine
@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "rope_parameters": BY_KIND},
        {"model_type": "llama", "rope_parameters": {**YARN, "partial_rotary_factor": 0.5}},
    ],
)
def test_what_a_model_file_does_not_read_is_refused(config: dict[str, Any]):
    with pytest.raises(EngineError, match="does not read") as refused:
        mlx_config(config)
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize(
    ("extra", "obstacle"),
    [
        ({}, None),
        ({"truncate": True}, None),
        ({"truncate": False}, "truncate"),
        ({"attention_factor": 1.2}, "attention_factor"),
    ],
)
def test_yarn_settings_that_mlx_lm_ignores(extra: dict[str, Any], obstacle: str | None):
    found = injection_obstacle({"rope_parameters": {**YARN, **extra}})
    assert obstacle is None if found is None else obstacle is not None and obstacle in found


def test_other_ropes_have_no_obstacle():
    assert injection_obstacle({"rope_theta": 1e4}) is None
