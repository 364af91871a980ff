"""Names what makes two checkpoints' caches interchangeable.

Two checkpoints of one base model (quantized or not, written by transformers 4 or 5, alone or
inside a multimodal one) have one fingerprint; models whose caches differ in shape or in the
positions' encoding have different ones. Weights are not looked at: that two checkpoints are of
one base model is for the caller to know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from engines.config import Config, ConfigError, layer_types, rope_parameters, text_config

__all__ = ["fingerprint"]

_REQUIRED: Final = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads")

_CACHE_SHAPES: Final = (
    "kv_lora_rank",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
"""Settings of latent and recurrent layers that shape their caches."""


def fingerprint(config: Config) -> str:
    """Return the hex fingerprint (32 characters) of a parsed config.json.

    Raises:
        ConfigError: the config lacks a setting that every model has.
    """
    facts = _facts(text_config(config))
    canonical = json.dumps(_canonical(facts), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def _facts(text: Config) -> dict[str, Any]:
    missing = [key for key in _REQUIRED if not text.get(key)]
    if missing:
        raise ConfigError(f"config.json lacks {', '.join(missing)}")
    heads = text["num_attention_heads"]
    kinds = layer_types(text)
    return {
        "model_type": str(text["model_type"]).removesuffix("_text"),
        "hidden_size": text["hidden_size"],
        "layer_types": kinds,
        "attention_heads": heads,
        "kv_heads": text.get("num_key_value_heads") or heads,
        "head_dim": text.get("head_dim") or text["hidden_size"] // heads,
        "window": text.get("sliding_window") if "sliding_attention" in kinds else None,
        "rope": rope_parameters(text),
        "norm_eps": text.get("rms_norm_eps") or text.get("layer_norm_eps"),
        "vocab_size": text.get("vocab_size"),
        "cache_shapes": {key: text[key] for key in _CACHE_SHAPES if text.get(key) is not None},
    }


def _canonical(value: object) -> object:
    """Write every number the same way: 1, 1.0 and a float32's 0.99999999 are one number."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.6g}"
    return value
