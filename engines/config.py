"""Reads a checkpoint's config.json: what both engines need to know before they load it.

transformers 4 and 5 spell the same rotary embedding in two ways (`rope_theta` and `rope_scaling`
at the top level, or everything in `rope_parameters`), and multimodal checkpoints nest the language
model's settings in `text_config`. Everything here gives one answer for all spellings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

__all__ = [
    "DEFAULT_ROPE_THETA",
    "Config",
    "ConfigError",
    "context_length",
    "layer_types",
    "read_config",
    "rope_parameters",
    "text_config",
]

Config: TypeAlias = Mapping[str, Any]
"""A parsed config.json."""

DEFAULT_ROPE_THETA: Final = 10000.0
"""The base of RoFormer (arXiv 2104.09864), meant by configs that name none."""

ALL_LAYERS: Final = "all"
"""Key of `rope_parameters` where one set of parameters serves every layer."""

_CONTEXT_KEYS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_ROPE_TYPE_ALIASES: Final = {"su": "longrope"}


class ConfigError(Exception):
    """A config.json that is missing, unreadable, or lacks what an engine needs."""


def read_config(checkpoint: Path) -> dict[str, Any]:
    """Return the checkpoint directory's config.json.

    Raises:
        ConfigError: there is none, or it is not a JSON object.
    """
    path = checkpoint / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"{checkpoint} is no checkpoint: {path.name}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return config


def text_config(config: Config) -> Config:
    """Return the language model's settings, wherever they are nested."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, Mapping) else config


def context_length(config: Config) -> int:
    """Return the longest sequence in tokens that the model was made for, YaRN's stretch included.

    Raises:
        ConfigError: the config does not say.
    """
    text = text_config(config)
    length = next((text[key] for key in _CONTEXT_KEYS if text.get(key)), None)
    if not isinstance(length, int) or length <= 0:
        raise ConfigError(
            f"config.json names no context length (any of {', '.join(_CONTEXT_KEYS)})"
        )
    for rope in rope_parameters(config).values():
        if rope["rope_type"] == "yarn":
            original = rope.get("original_max_position_embeddings", length)
            length = max(length, int(original * rope.get("factor", 1.0)))
    return length


def layer_types(config: Config) -> list[str]:
    """Return each layer's kind in transformers' terms, derived where the config only implies it."""
    text = text_config(config)
    count = int(text.get("num_hidden_layers", 0))
    explicit = text.get("layer_types")
    if isinstance(explicit, list) and explicit:
        return [str(kind) for kind in explicit]
    if interval := text.get("full_attention_interval"):
        return _every(count, interval, "full_attention", "linear_attention")
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return ["full_attention"] * count
    if pattern := text.get("sliding_window_pattern"):
        return _every(count, pattern, "full_attention", "sliding_attention")
    first_windowed = text.get("max_window_layers", 0)
    return ["sliding_attention" if i >= first_windowed else "full_attention" for i in range(count)]


def rope_parameters(config: Config) -> dict[str, dict[str, Any]]:
    """Return the rotary embedding's parameters in one spelling.

    Keyed by layer kind where kinds differ (`full_attention`, `sliding_attention`), else by `all`.
    Each value has `rope_type` and `rope_theta`, and whatever else the type takes.
    """
    text = text_config(config)
    given = text.get("rope_parameters")
    if isinstance(given, Mapping) and given:
        if all(isinstance(value, Mapping) for value in given.values()):
            return {kind: _normal(value, text) for kind, value in given.items()}
        return {ALL_LAYERS: _normal(given, text)}
    scaling = text.get("rope_scaling") or {}
    rope = _normal({"rope_theta": text.get("rope_theta"), **scaling}, text)
    local_theta = text.get("rope_local_base_freq")
    if local_theta is None:
        return {ALL_LAYERS: rope}
    local = _normal({"rope_theta": local_theta}, text)
    return {"full_attention": rope, "sliding_attention": local}


def _every(count: int, interval: int, nth: str, others: str) -> list[str]:
    return [others if (i + 1) % interval else nth for i in range(count)]


def _normal(rope: Config, text: Config) -> dict[str, Any]:
    """Drop what is unset, name the type, and take in what transformers 4 keeps at the top level."""
    given = {key: value for key, value in rope.items() if value is not None}
    kind = str(given.pop("type", None) or given.get("rope_type") or "default")
    if "rope_type" in given:
        kind = str(given["rope_type"])
    given["rope_type"] = _ROPE_TYPE_ALIASES.get(kind, kind)
    given.setdefault("rope_theta", text.get("rope_theta") or DEFAULT_ROPE_THETA)
    for key in ("partial_rotary_factor", "original_max_position_embeddings"):
        if text.get(key) is not None:
            given.setdefault(key, text[key])
    if given.get("partial_rotary_factor") == 1.0:
        del given["partial_rotary_factor"]
    return given
