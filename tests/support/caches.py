"""Cache layouts and contents that look like those of models, small."""

import numpy as np
from hypothesis import strategies as st

from protocols.cache import (
    AttentionLayer,
    CacheLayout,
    DType,
    LatentLayer,
    StateArray,
    StateLayer,
    WindowLayer,
)
from protocols.kv_prefill.codec import NUMPY_DTYPES, encode_chunk
from protocols.kv_prefill.messages import Chunk, Codec

__all__ = ["HYBRID", "arrays_for", "bfloat16_like", "chunk_for", "layouts"]

HYBRID = CacheLayout(
    dtype="bfloat16",
    layers=(
        AttentionLayer(kv_heads=2, k_dim=16, v_dim=8),
        WindowLayer(kv_heads=1, k_dim=8, v_dim=8, window=5),
        LatentLayer(rank=24, rope_dim=4),
        StateLayer(
            (
                StateArray("conv", (3, 5), "bfloat16"),
                None,
                StateArray("recurrent", (2, 4, 4), "float32"),
            )
        ),
        StateLayer((None,)),
    ),
    fingerprint="hybrid",
)
"""A layer of each kind, one whose state arrays are absent, and a misaligned float32 array."""

_dims = st.integers(1, 6)
_dtypes = st.sampled_from(list(NUMPY_DTYPES))
_layers = (
    st.builds(AttentionLayer, _dims, _dims, _dims)
    | st.builds(WindowLayer, _dims, _dims, _dims, st.integers(1, 9))
    | st.builds(LatentLayer, _dims, _dims)
    | st.builds(
        StateLayer,
        st.lists(
            st.none()
            | st.builds(StateArray, st.just("s"), st.lists(_dims, max_size=3).map(tuple), _dtypes),
            max_size=3,
        ).map(tuple),
    )
)


def layouts(max_layers: int = 4) -> st.SearchStrategy[CacheLayout]:
    """Return a strategy for layouts of every kind of layer and dtype."""
    layers = st.lists(_layers, min_size=1, max_size=max_layers).map(tuple)
    return st.builds(CacheLayout, _dtypes, layers, st.just("fingerprint"))


def bfloat16_like(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return the bits of bfloat16 numbers: normal, of a scale that varies by the last dimension."""
    scales = np.exp(rng.standard_normal(shape[-1:]))
    numbers = (rng.standard_normal(shape) * scales).astype(np.float32)
    return (np.atleast_1d(numbers).view(np.uint32) >> 16).astype(np.uint16).reshape(shape)


def arrays_for(
    rng: np.random.Generator, layout: CacheLayout, layer: int, tokens: int
) -> list[np.ndarray]:
    """Return arrays such as an engine hands out for a chunk."""
    arrays = []
    for spec in layout.arrays(layer, tokens):
        dtype: DType = spec.dtype
        if dtype == "bfloat16":
            arrays.append(bfloat16_like(rng, spec.shape))
        else:
            random = rng.integers(0, 256, spec.nbytes, np.uint8)
            arrays.append(random.view(NUMPY_DTYPES[dtype]).reshape(spec.shape))
    return arrays


def chunk_for(
    layout: CacheLayout, layer: int, start: int, end: int, codec: Codec = "raw", seed: int = 0
) -> tuple[Chunk, bytes]:
    """Return a chunk of random contents and its payload."""
    arrays = arrays_for(np.random.default_rng(seed), layout, layer, end - start)
    chunk, buffers = encode_chunk(layer, start, end, arrays, codec)
    return chunk, b"".join(buffers)
