"""What a checkpoint's files say of it without being loaded: how it is quantized, and how large."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from protocols.gossip import Quantization

__all__ = ["UnreadableCheckpoint", "quantization_of", "weight_bytes"]

_MAX_CONFIG_BYTES: Final = 4 << 20
_WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".gguf")
"""The first of them that a checkpoint has files of is what an engine loads."""

_METHODS: Final[dict[str, Quantization]] = {
    "awq": "awq",
    "awq_marlin": "awq",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "compressed_tensors": "compressed-tensors",
    "fbgemm_fp8": "fp8",
    "fp8": "fp8",
    "gguf": "gguf",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "mxfp4": "mxfp4",
}
"""transformers' names of quantization methods.

Source: https://huggingface.co/docs/transformers/main_classes/quantization
"""
_MODELOPT_ALGORITHMS: Final[dict[str, Quantization]] = {"fp8": "fp8", "nvfp4": "nvfp4"}

_Settings = dict[str, msgspec.Raw]


class UnreadableCheckpoint(Exception):
    """A directory that looks like a checkpoint and cannot be loaded as one."""


class _Nested(msgspec.Struct):
    quantization_config: _Settings | None = None


class _Config(msgspec.Struct):
    quantization: _Settings | None = None
    quantization_config: _Settings | None = None
    text_config: _Nested | None = None


def quantization_of(checkpoint: Path) -> Quantization:
    """Return how the weights of a checkpoint are stored, by its config.json.

    Raises:
        UnreadableCheckpoint: there is no config.json that can be read.
    """
    try:
        with (checkpoint / "config.json").open("rb") as file:
            config = msgspec.json.decode(file.read(_MAX_CONFIG_BYTES), type=_Config)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise UnreadableCheckpoint(f"its config.json cannot be read: {error}") from error
    settings = config.quantization_config
    if settings is None and config.text_config is not None:
        settings = config.text_config.quantization_config
    method = _text(settings, "quant_method")
    # mlx-lm writes its settings under both keys, without a method.
    if not method and {"group_size", "bits"} <= (config.quantization or settings or {}).keys():
        return "mlx"
    if method.startswith("modelopt"):
        return _MODELOPT_ALGORITHMS.get(_text(settings, "quant_algo"), "other")
    if settings or config.quantization:
        return _METHODS.get(method, "other")
    return "gguf" if _weights(checkpoint)[0] == ".gguf" else "none"


def weight_bytes(checkpoint: Path) -> int:
    """Return the size of the weights that an engine would load; 0 when there are none.

    Raises:
        UnreadableCheckpoint: a file of them cannot be found, such as one behind a broken link.
    """
    _, files = _weights(checkpoint)
    try:
        return sum(file.stat().st_size for file in files)
    except OSError as error:
        raise UnreadableCheckpoint(f"its weights cannot be read: {error}") from error


def _weights(checkpoint: Path) -> tuple[str, list[Path]]:
    for suffix in _WEIGHT_SUFFIXES:
        files = sorted(checkpoint.glob(f"*{suffix}"))
        # Mistral publishes the same weights a second time, in its own format.
        if sharded := [file for file in files if not file.name.startswith("consolidated")]:
            files = sharded
        if files:
            return suffix, files
    return "", []


def _text(settings: _Settings | None, key: str) -> str:
    raw = (settings or {}).get(key)
    value = msgspec.json.decode(raw) if raw is not None else ""
    return value.lower() if isinstance(value, str) else ""
