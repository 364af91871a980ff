"""The cache that is moved: whole, in the engine's order, and as hard to compress as a real one."""

import numpy as np
import pytest

from bench.kv.data import BYTES_PER_TOKEN, ENCODERS, LAYOUT, CacheData, Piece, pieces, tokens_for
from engines.chunks import ENCODERS as ENGINE_ENCODERS
from engines.vllm.handoff import MAX_TOKENS
from engines.vllm.start import GPU_STEP_TOKENS
from protocols.kv_prefill.codec import decode, encode_chunk
from protocols.kv_prefill.coverage import Coverage
from protocols.kv_prefill.messages import Chunk


@pytest.fixture(scope="module")
def data() -> CacheData:
    return CacheData()


@pytest.mark.parametrize("tokens", [1, 1023, 1024, 4097, 9000])
def test_pieces_cover_the_cache_once(tokens: int):
    coverage = Coverage(LAYOUT, 0, tokens)
    moved = 0
    for piece in pieces(tokens):
        size = LAYOUT.nbytes(piece.layer, piece.end - piece.start)
        assert piece.end - piece.start <= MAX_TOKENS
        coverage.add(Chunk(*piece, "raw", size, size, bytes(8)))
        moved += size
    assert coverage.complete
    assert moved == tokens * BYTES_PER_TOKEN


def test_as_many_threads_encode_as_in_an_engine():
    assert ENCODERS == ENGINE_ENCODERS


def test_a_step_hands_out_every_layer_before_the_next_step():
    layers = [piece.layer for piece in pieces(2 * GPU_STEP_TOKENS)]
    half = len(layers) // 2
    assert layers[:half] == layers[half:] == sorted(layers[:half])


def test_sizes_become_whole_tokens():
    assert BYTES_PER_TOKEN == 131_072
    assert [tokens_for(size) for size in (1, 131_072, 1_070_000_000)] == [1, 1, 8163]
    for size in (0, -1):
        with pytest.raises(ValueError, match="no cache"):
            tokens_for(size)


def test_it_compresses_as_a_real_cache_does(data: CacheData):
    piece = Piece(3, 0, 1024)
    chunk, _ = encode_chunk(*piece, data.arrays(0, piece), "planes")
    assert 1.45 < chunk.raw_size / chunk.size < 1.50


def test_arrays_and_bytes_are_the_same_and_variants_differ(data: CacheData):
    piece = Piece(0, 100, 107)
    chunk, _ = encode_chunk(*piece, data.arrays(1, piece), "raw")
    decoded = decode(data.raw(1, piece), chunk, LAYOUT)
    for ours, theirs in zip(data.arrays(1, piece), decoded, strict=True):
        assert ours.shape == (7, 8, 128)
        np.testing.assert_array_equal(ours, theirs)
    assert data.raw(1, piece) != data.raw(2, piece)
