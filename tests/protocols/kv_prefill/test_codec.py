"""A payload decodes to the very arrays that were encoded, or to a typed error."""

import threading
import tracemalloc

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.cache import AttentionLayer, CacheLayout
from protocols.errors import ChecksumMismatch, LimitExceeded, Malformed, ProtocolError
from protocols.framing import MAX_PAYLOAD
from protocols.kv_prefill.codec import checksum, decode, encode, encode_chunk
from protocols.kv_prefill.messages import Chunk, Codec
from tests.support.caches import HYBRID, arrays_for, bfloat16_like, chunk_for, layouts

LAYOUT = CacheLayout("bfloat16", (AttentionLayer(kv_heads=4, k_dim=32, v_dim=32),), "f")
TOKENS = 64
PLANE = LAYOUT.nbytes(0, TOKENS) // 2
CODECS: list[Codec] = ["raw", "planes"]
over_codecs = pytest.mark.parametrize("codec", CODECS)


def planes_payload(high: bytes, low: bytes) -> bytes:
    """Build a payload by the documented format, beside the encoder."""
    return len(high).to_bytes(4, "big") + high + low


def header_of(raw: bytes, payload: bytes, codec: Codec = "planes") -> Chunk:
    return Chunk(0, 0, TOKENS, codec, len(raw), len(payload), checksum(raw))


@given(layouts(), st.integers(1, 40), st.sampled_from(CODECS), st.integers(0, 99), st.booleans())
def test_round_trip(
    layout: CacheLayout, tokens: int, codec: Codec, seed: int, into_buffer: bool
) -> None:
    for layer in range(len(layout.layers)):
        arrays = arrays_for(np.random.default_rng(seed), layout, layer, tokens)
        chunk, buffers = encode_chunk(layer, 3, 3 + tokens, arrays, codec)
        payload = b"".join(buffers)
        assert len(payload) == chunk.size <= chunk.raw_size == layout.nbytes(layer, tokens)
        out = bytearray(chunk.raw_size) if into_buffer else None
        decoded = decode(payload, chunk, layout, out)
        assert [a.dtype for a in decoded] == [a.dtype for a in arrays]
        assert [a.shape for a in decoded] == [a.shape for a in arrays]
        assert [a.tobytes() for a in decoded] == [a.tobytes() for a in arrays]
        if out is not None:
            assert bytes(out) == b"".join(a.tobytes() for a in arrays)


def test_the_planes_are_as_documented() -> None:
    keys, values = arrays_for(np.random.default_rng(1), LAYOUT, 0, TOKENS)
    chunk, buffers = encode_chunk(0, 0, TOKENS, [keys, values], "planes")
    payload = b"".join(buffers)
    raw = keys.tobytes() + values.tobytes()
    compressed = int.from_bytes(payload[:4], "big")
    assert chunk.codec == "planes"
    assert zstandard.decompress(payload[4 : 4 + compressed]) == raw[1::2]
    assert payload[4 + compressed :] == raw[::2]
    assert chunk.size < 0.75 * chunk.raw_size


def test_a_payload_by_another_encoder_decodes() -> None:
    chunk, raw = chunk_for(LAYOUT, 0, 0, TOKENS)
    payload = planes_payload(zstandard.compress(raw[1::2], 19), raw[::2])
    decoded = decode(payload, header_of(raw, payload), LAYOUT)
    assert b"".join(a.tobytes() for a in decoded) == raw
    assert chunk.checksum == header_of(raw, payload).checksum


@pytest.mark.parametrize(
    "arrays",
    [
        [np.random.default_rng(0).integers(0, 2**16, (64, 64), np.uint16)],
        [np.zeros((64, 64), np.float32)],
        [np.zeros((64, 64), np.uint16), np.zeros(4, np.uint8)],
        [np.zeros(2, np.uint16)],
        [np.zeros((0, 4), np.uint16)],
        [],
    ],
    ids=["noise", "float32", "mixed sizes", "tiny", "no elements", "no arrays"],
)
def test_what_planes_do_not_shrink_is_raw(arrays: list[np.ndarray]) -> None:
    encoded = encode(arrays, "planes")
    assert encoded.codec == "raw"
    assert b"".join(encoded.buffers) == b"".join(a.tobytes() for a in arrays)


def test_raw_copies_nothing() -> None:
    array = bfloat16_like(np.random.default_rng(0), (TOKENS, 4, 32))
    chunk, buffers = encode_chunk(0, 0, TOKENS, [array, array.copy()], "raw")
    assert np.shares_memory(np.frombuffer(buffers[0], np.uint8), array)
    payload = bytearray(b"".join(buffers))
    keys, values = decode(payload, chunk, LAYOUT)
    assert np.shares_memory(keys, np.frombuffer(payload, np.uint8))
    assert np.shares_memory(values, np.frombuffer(payload, np.uint8))


def test_decoded_arrays_are_aligned() -> None:
    chunk, payload = chunk_for(HYBRID, 3, 0, 4)
    assert all(array.flags.aligned for array in decode(payload, chunk, HYBRID))


def test_an_array_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(ValueError, match="C-contiguous"):
        encode([np.zeros((4, 4), np.uint16).T], "raw")


def test_a_buffer_of_another_size_is_the_callers_mistake() -> None:
    chunk, payload = chunk_for(LAYOUT, 0, 0, TOKENS)
    with pytest.raises(ValueError, match="to decode"):
        decode(payload, chunk, LAYOUT, bytearray(chunk.raw_size + 1))


@over_codecs
@given(data=st.data())
@settings(max_examples=80)
def test_a_damaged_payload_is_never_a_tensor(codec: Codec, data: st.DataObject) -> None:
    chunk, sent = chunk_for(LAYOUT, 0, 0, TOKENS, codec)
    payload = bytearray(sent)
    # The head of the payload has the structure; the rest is bulk.
    at = data.draw(st.integers(0, 40) | st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    try:
        decoded = decode(payload, chunk, LAYOUT)
    except ProtocolError:
        return
    # Bits that zstd leaves without a meaning change nothing in what is decoded.
    assert codec == "planes"
    assert b"".join(a.tobytes() for a in decoded) == chunk_for(LAYOUT, 0, 0, TOKENS)[1]


@over_codecs
@given(data=st.data())
def test_a_payload_of_random_bytes_is_an_error(codec: Codec, data: st.DataObject) -> None:
    payload = data.draw(st.binary(min_size=1, max_size=3 * TOKENS))
    raw_size = LAYOUT.nbytes(0, TOKENS)
    with pytest.raises(ProtocolError):
        decode(payload, Chunk(0, 0, TOKENS, codec, raw_size, len(payload), b"8" * 8), LAYOUT)


@over_codecs
def test_a_flipped_bulk_byte_is_a_checksum_mismatch(codec: Codec) -> None:
    chunk, sent = chunk_for(LAYOUT, 0, 0, TOKENS, codec)
    with pytest.raises(ChecksumMismatch):
        decode(sent[:-1] + bytes([sent[-1] ^ 1]), chunk, LAYOUT)


@over_codecs
def test_a_payload_cut_short_or_too_long_is_malformed(codec: Codec) -> None:
    chunk, sent = chunk_for(LAYOUT, 0, 0, TOKENS, codec)
    for payload in (sent[:-1], sent + b"\x00", b""):
        with pytest.raises(Malformed):
            decode(payload, chunk, LAYOUT)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"layer": 1}, Malformed),
        ({"layer": -1}, Malformed),
        ({"end": TOKENS + 1}, Malformed),
        ({"start": TOKENS}, Malformed),
        ({"end": 2**62}, Malformed),
        ({"raw_size": 0}, Malformed),
        ({"size": LAYOUT.nbytes(0, TOKENS) - 1}, Malformed),
        ({"size": LAYOUT.nbytes(0, TOKENS) + 1}, LimitExceeded),
        ({"checksum": b""}, Malformed),
        ({"codec": "planes"}, Malformed),
    ],
)
def test_a_header_that_lies_is_refused(
    changes: dict[str, object], error: type[ProtocolError]
) -> None:
    chunk, payload = chunk_for(LAYOUT, 0, 0, TOKENS)
    with pytest.raises(error):
        decode(payload, msgspec.structs.replace(chunk, **changes), LAYOUT)


def test_planes_of_elements_that_are_not_16_bits_are_malformed() -> None:
    chunk, payload = chunk_for(HYBRID, 3, 0, 1)
    with pytest.raises(Malformed, match="not all 16 bits"):
        decode(payload, msgspec.structs.replace(chunk, codec="planes"), HYBRID)


def zeros_frame(size: int, *, window_log: int = 17, content_size: bool = True) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, write_content_size=int(content_size)
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj(
        size=size if content_size else -1
    )
    return compressor.compress(bytes(size)) + compressor.flush()


@pytest.mark.parametrize(
    "frame",
    [
        zeros_frame(64 << 20),
        zeros_frame(PLANE, content_size=False),
        zstandard.compress(bytes(PLANE - 1)),
        zstandard.compress(bytes(PLANE)) + b"more",
        zstandard.compress(bytes(PLANE)) * 2,
        zstandard.compress(bytes(PLANE))[:-1],
        b"\x50\x2a\x4d\x18" + PLANE.to_bytes(4, "little") + bytes(PLANE - 100),
        b"",
    ],
    ids=["bomb", "no size", "smaller", "trailing", "twice", "cut", "skippable", "empty"],
)
def test_a_plane_of_another_size_is_refused_before_it_costs_memory(frame: bytes) -> None:
    payload = planes_payload(frame, bytes(PLANE))
    header = header_of(bytes(2 * PLANE), payload)
    tracemalloc.start()
    try:
        with pytest.raises((Malformed, LimitExceeded)):
            decode(payload, header, LAYOUT)
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()


def test_a_huge_zstd_window_is_refused() -> None:
    frame = bytearray(zeros_frame(PLANE, window_log=10))
    # The window descriptor follows the magic number and the frame header descriptor.
    frame[5] = 17 << 3
    assert zstandard.get_frame_parameters(bytes(frame)).window_size == 1 << 27
    payload = planes_payload(bytes(frame), bytes(PLANE))
    with pytest.raises(LimitExceeded, match="window"):
        decode(payload, header_of(bytes(2 * PLANE), payload), LAYOUT)


@pytest.mark.parametrize("size", [PLANE + 1, PLANE - 1, 1, 0])
def test_a_low_plane_of_another_size_is_malformed(size: int) -> None:
    payload = planes_payload(zstandard.compress(bytes(PLANE)), bytes(size))
    with pytest.raises(Malformed):
        decode(payload, header_of(bytes(2 * PLANE), payload), LAYOUT)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_planes_without_room_for_their_header_are_malformed(size: int) -> None:
    payload = bytes(size)
    with pytest.raises(Malformed):
        decode(payload, header_of(bytes(2 * PLANE), payload), LAYOUT)


def test_a_chunk_over_the_limit_of_payloads_is_refused() -> None:
    layout = CacheLayout("bfloat16", (AttentionLayer(1024, 1024, 1024),), "f")
    raw_size = layout.nbytes(0, TOKENS + 1)
    assert raw_size > MAX_PAYLOAD
    chunk = Chunk(0, 0, TOKENS + 1, "planes", raw_size, 0, bytes(8))
    with pytest.raises(LimitExceeded):
        decode(b"", chunk, layout)


def test_a_decoder_works_on_after_an_error() -> None:
    chunk, sent = chunk_for(LAYOUT, 0, 0, TOKENS, "planes")
    damaged = bytearray(sent)
    damaged[20:60] = bytes(40)
    with pytest.raises(ProtocolError):
        decode(damaged, chunk, LAYOUT)
    assert decode(sent, chunk, LAYOUT)


def test_threads_do_not_disturb_each_other() -> None:
    failures: list[int] = []

    def work(seed: int) -> None:
        tokens = 1024
        arrays = arrays_for(np.random.default_rng(seed), LAYOUT, 0, tokens)
        for _ in range(20):
            chunk, buffers = encode_chunk(0, 0, tokens, arrays, "planes")
            decoded = decode(b"".join(buffers), chunk, LAYOUT)
            if any((a != b).any() for a, b in zip(arrays, decoded, strict=True)):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_checksum_is_of_the_parts_together() -> None:
    # From the BLAKE3 test vectors: the input of one byte, 0.
    assert checksum(b"\x00").hex() == "2d3adedff11b61f1"
    assert checksum(b"ab", b"", b"c") == checksum(b"abc") != checksum(b"abd")
