"""One vLLM engine for all tests, and an independent computation of what its caches must hold."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from engines.vllm import environment
from engines.vllm.engine import VllmEngine, create
from protocols.engine import Capabilities, Load
from tests.support.engines import MemoryOutbox, MemorySink

# Before any test imports torch: OpenMP reads its variables once.
environment.prepare()

MAX_CONTEXT = 2048
BLOCK = 128
BLOCKS = 20
"""Few enough that a long prompt and an answer do not fit together; one is vLLM's null block."""
BLOCK_BYTES = BLOCK * 30 * 2 * 3 * 64 * 2


@dataclass
class Running:
    """A loaded engine and its two ends."""

    engine: VllmEngine
    outbox: MemoryOutbox
    sink: MemorySink
    capabilities: Capabilities
    stages: list[tuple[str, float]]
    text: list[int]

    def prompt(self, length: int, seed: int) -> list[int]:
        """Make a prompt of so many tokens; those of different seeds have no common prefix.

        It is text: random tokens drive the model to where bfloat16 errs twice as much.
        """
        return (self.text[17 * seed :] + self.text)[:length]


@pytest.fixture(scope="package")
def running(smollm2_path: Path) -> Iterator[Running]:
    outbox = MemoryOutbox()
    sink = MemorySink(outbox)
    engine = create(outbox, sink)
    stages: list[tuple[str, float]] = []
    capabilities = engine.load(
        Load(
            model="SmolLM2-135M-Instruct",
            path=str(smollm2_path),
            memory_bytes=BLOCKS * BLOCK_BYTES,
            max_context=MAX_CONTEXT,
        ),
        lambda stage, fraction: stages.append((stage, fraction)),
    )
    licence = (Path(__file__).parents[3] / "LICENSE").read_text()
    text: list[int] = engine._llm.get_tokenizer().encode(licence)
    yield Running(engine, outbox, sink, capabilities, stages, text)
    engine.unload()


Cache: TypeAlias = list[tuple[np.ndarray, np.ndarray]]


@dataclass
class Reference:
    """transformers' own implementation of the model, in float32."""

    prefill: Callable[[tuple[int, ...]], Cache]
    """Keys and values of each layer, `[tokens, kv_heads, head_dim]`."""
    greedy: Callable[[tuple[int, ...], int], list[int]]
    """What follows a prompt, up to the end of the answer and without its mark."""


@pytest.fixture(scope="package")
def reference(smollm2_path: Path) -> Reference:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32)

    @cache
    def prefill(tokens: tuple[int, ...]) -> Cache:
        with torch.inference_mode():
            filled = model(torch.tensor([tokens]), use_cache=True, logits_to_keep=1)
        return [
            (layer.keys[0].transpose(0, 1).numpy(), layer.values[0].transpose(0, 1).numpy())
            for layer in filled.past_key_values.layers
        ]

    def greedy(tokens: tuple[int, ...], most: int) -> list[int]:
        with torch.inference_mode():
            whole = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
                torch.tensor([tokens]),
                attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                max_new_tokens=most,
                do_sample=False,
            )
        end = model.generation_config.eos_token_id
        return [token for token in whole[0, len(tokens) :].tolist() if token != end]

    return Reference(prefill, greedy)
