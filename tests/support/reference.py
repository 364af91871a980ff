"""What transformers computes in float32, to hold the engines against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from protocols.kv_prefill.codec import encode_chunk
from protocols.kv_prefill.messages import Chunk, Codec

__all__ = ["Reference", "write_tiny_llama"]


class Reference:
    """A checkpoint in transformers, eager and in float32."""

    def __init__(self, path: Path, **overrides: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", **overrides
        ).eval()

    def greedy(self, prompt: list[int], count: int, *, rounded: bool = False) -> list[int]:
        """Return the `count` most likely tokens in turn, end tokens included.

        With `rounded`, the cache of all but the prompt's last token is rounded to bfloat16 first,
        as one that was sent is: near ties may then fall the other way.
        """
        tokens, cache, step = [], None, prompt
        with self._torch.no_grad():
            if rounded:
                cache, step = self._rounded_cache(prompt[:-1]), prompt[-1:]
            for _ in range(count):
                out = self._model(self._torch.tensor([step]), past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                step = [int(out.logits[0, -1].argmax())]
                tokens += step
        return tokens

    def chunks(
        self, prompt: list[int], end: int, piece: int, codec: Codec = "planes"
    ) -> list[tuple[Chunk, bytes]]:
        """Return the cache of `prompt[:end]` in bfloat16, as a prefill engine would send it."""
        with self._torch.no_grad():
            cache = self._model(self._torch.tensor([prompt[:end]]), use_cache=True).past_key_values
        chunks = []
        for start in range(0, end, piece):
            stop = min(start + piece, end)
            for index, layer in enumerate(cache.layers):
                arrays = [self._bits(a[0, :, start:stop]) for a in (layer.keys, layer.values)]
                chunk, buffers = encode_chunk(index, start, stop, arrays, codec)
                chunks.append((chunk, b"".join(buffers)))
        return chunks

    def _rounded_cache(self, tokens: list[int]) -> Any:
        cache = self._model(self._torch.tensor([tokens]), use_cache=True).past_key_values
        for layer in cache.layers:
            layer.keys = layer.keys.to(self._torch.bfloat16).float()
            layer.values = layer.values.to(self._torch.bfloat16).float()
        return cache

    def _bits(self, array: Any) -> np.ndarray:
        rounded = array.transpose(0, 1).to(self._torch.bfloat16).contiguous()
        return rounded.view(self._torch.uint16).numpy()


def write_tiny_llama(
    directory: Path, tokenizer: Path, *, head_dim: int = 16, **settings: Any
) -> Path:
    """Write a random Llama of 3 layers in bfloat16 that uses the tokenizer in another checkpoint.

    Its weights are large enough that what it says depends on all of the prompt.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        **settings,
    )
    model = LlamaForCausalLM(config)
    model.to(dtype=torch.bfloat16)  # pyright: ignore[reportCallIssue]
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)
    return directory
