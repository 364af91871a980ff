"""Makes mlx-lm read a checkpoint's rotary embedding as transformers and vLLM do.

transformers 5 writes `rope_parameters`. Some of mlx-lm's model files read it; many look only for
`rope_theta` and `rope_scaling` at the top level, and where those are missing assume a base of
10000 without a word: text stays fluent, caches from elsewhere are nonsense. The config is
therefore put into both spellings before mlx-lm reads it, and refused where neither is understood.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, Final

from engines.base import EngineError
from engines.config import DEFAULT_ROPE_THETA, Config, rope_parameters, text_config

__all__ = ["injection_obstacle", "mlx_config"]

_YARN_BLIND_SPOTS: Final = {"truncate": True, "attention_factor": None}
"""YaRN settings that mlx-lm ignores, with the only values for which that makes no difference."""


def mlx_config(config: Config) -> dict[str, Any]:
    """Return the config with the rotary embedding spelled in every way that mlx-lm may read.

    Raises:
        EngineError: mlx-lm's model file cannot express what the config asks for.
    """
    if not text_config(config).get("rope_parameters"):
        return dict(config)
    ropes = rope_parameters(config)
    spelled = _top_level_spelling(ropes)
    fields = _settings_read(config)
    if fields is not None and "rope_parameters" not in fields:
        _refuse_unread(spelled, fields, str(config.get("model_type")))
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        return {**config, "text_config": {**nested, **spelled}}
    return {**config, **spelled}


def injection_obstacle(config: Config) -> str | None:
    """Return why mlx-lm's positions differ from the config's, or None where they agree."""
    for rope in rope_parameters(config).values():
        if rope["rope_type"] != "yarn":
            continue
        for key, harmless in _YARN_BLIND_SPOTS.items():
            if rope.get(key, harmless) != harmless:
                return f"mlx-lm ignores YaRN's {key}={rope[key]}"
    return None


def _top_level_spelling(ropes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Spell as transformers 4 does; `ropes` as of `rope_parameters`."""
    main = dict(ropes.get("full_attention") or next(iter(ropes.values())))
    spelled: dict[str, Any] = {"rope_theta": main.pop("rope_theta")}
    if (partial := main.pop("partial_rotary_factor", None)) is not None:
        spelled["partial_rotary_factor"] = partial
    if main["rope_type"] != "default":
        spelled["rope_scaling"] = {**main, "type": main["rope_type"]}
    local = ropes.get("sliding_attention")
    if local is not None and local != ropes.get("full_attention"):
        spelled["rope_local_base_freq"] = local["rope_theta"]
    return spelled


def _settings_read(config: Config) -> frozenset[str] | None:
    """Return the names of the settings that mlx-lm's model file reads; None if it has none."""
    name = str(text_config(config).get("model_type"))
    try:
        module = importlib.import_module(f"mlx_lm.models.{name}")
    except ImportError:
        return None  # another name for a model, or none at all: mlx-lm itself will say which
    return frozenset(inspect.signature(module.ModelArgs).parameters)


def _refuse_unread(spelled: Mapping[str, Any], fields: frozenset[str], model_type: str) -> None:
    matters = {
        "rope_theta": spelled["rope_theta"] != DEFAULT_ROPE_THETA,
        "partial_rotary_factor": "partial_rotary_factor" in spelled,
        "rope_scaling": "rope_scaling" in spelled,
        "rope_local_base_freq": "rope_local_base_freq" in spelled,
    }
    unread = [key for key, does in matters.items() if does and key not in fields]
    if unread:
        raise EngineError(
            "unsupported",
            f"mlx-lm's {model_type} does not read {', '.join(unread)}, which this checkpoint's "
            "rope_parameters need: its positions would be wrong",
        )
