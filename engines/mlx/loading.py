"""Loads a checkpoint with mlx-lm."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import jinja2
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm import utils as mlx_lm
from mlx_lm.models.cache import make_prompt_cache

from engines.base import EngineError, LoadProgress, conversation
from engines.config import Config, ConfigError, context_length, read_config, text_config
from engines.fingerprint import fingerprint
from engines.mlx.caches import PromptCache, attention_layers
from engines.mlx.parity import mlx_config
from protocols.cache import AttentionLayer, CacheLayout, DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from protocols.chat import Message

__all__ = ["LoadedModel", "load_model"]

_WIRE_DTYPES: Final[dict[mx.Dtype, DType]] = {
    mx.bfloat16: "bfloat16",
    mx.float16: "float16",
    mx.float32: "float32",
}


@dataclass(frozen=True)
class LoadedModel:
    """A model, its tokenizer, and what the engine must know of them."""

    model: nn.Module
    tokenizer: TokenizerWrapper
    dtype: mx.Dtype
    """What it computes in, and what its caches hold."""
    layers: list[AttentionLayer]
    """Empty where caches cannot be injected."""
    obstacle: str
    """Why they cannot; empty where they can."""
    layout: CacheLayout
    context: int
    vocab_size: int
    eos: frozenset[int]
    device: str

    def tokenize(self, messages: Sequence[Message]) -> list[int]:
        """Apply the chat template, ready for the assistant to answer.

        Raises:
            EngineError: there is no template, or it refuses these messages.
        """
        if not self.tokenizer.has_chat_template:
            raise EngineError("unsupported", "the model has no chat template")
        spoken = conversation(messages)
        try:
            return list(self.tokenizer.apply_chat_template(spoken, add_generation_prompt=True))
        except (jinja2.TemplateError, ValueError, TypeError) as error:
            raise EngineError(
                "bad_request", f"the chat template refuses these messages: {error}"
            ) from error

    def empty_caches(self) -> list[PromptCache]:
        """Make caches of whatever types the model uses, holding nothing."""
        return make_prompt_cache(self.model)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens, leaving special ones out."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)


def load_model(path: Path, progress: LoadProgress) -> LoadedModel:
    """Load the checkpoint at `path`: in float32 on a CPU, in its own dtype on a GPU.

    Raises:
        EngineError: it cannot be loaded, with the reason.
    """
    try:
        config = read_config(path)
        progress("weights", 0.1)
        model, _ = mlx_lm.load_model(path, lazy=True, model_config=mlx_config(config))
        stored = _dtype_of(model)
        # MLX's bfloat16 and float16 on a CPU are several times slower than float32.
        dtype = stored if _on_gpu() else mx.float32
        if dtype != stored:
            model.set_dtype(dtype)
        mx.eval(model.parameters())
        progress("tokenizer", 0.7)
        tokenizer = mlx_lm.load_tokenizer(path)
        layers, obstacle = attention_layers(model, config)
        return LoadedModel(
            model=model,
            tokenizer=tokenizer,
            dtype=dtype,
            layers=layers,
            obstacle=obstacle or "",
            layout=CacheLayout(_WIRE_DTYPES[stored], tuple(layers), fingerprint(config)),
            context=context_length(config),
            vocab_size=int(text_config(config)["vocab_size"]),
            eos=_eos_tokens(path, config, tokenizer),
            device=_device_name(),
        )
    except (ConfigError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise EngineError("engine", f"mlx-lm cannot load {path}: {error!r}") from error


def _on_gpu() -> bool:
    return mx.default_device() == mx.Device(mx.gpu)


def _device_name() -> str:
    return str(mx.device_info().get("device_name", "gpu")) if _on_gpu() else "cpu"


def _dtype_of(model: nn.Module) -> mx.Dtype:
    """Return the dtype of most of the model's floating-point parameters."""
    parameters = cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))
    counts = Counter(array.dtype for _, array in parameters if array.dtype in _WIRE_DTYPES)
    if not counts:
        raise ValueError("the model has no floating-point parameters")
    return counts.most_common(1)[0][0]


def _eos_tokens(path: Path, config: Config, tokenizer: TokenizerWrapper) -> frozenset[int]:
    """Collect the tokens that end an answer from every place that may name them."""
    found = set(tokenizer.eos_token_ids)
    sources = [text_config(config)]
    generation = path / "generation_config.json"
    if generation.is_file():
        sources.append(json.loads(generation.read_text()))
    for source in sources:
        eos = source.get("eos_token_id")
        if eos is not None:
            found.update(eos if isinstance(eos, list) else [eos])
    return frozenset(found)
