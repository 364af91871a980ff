from typing import Any

import numpy as np
import pytest

from protocols.cache import AttentionLayer, CacheLayout, DType
from protocols.errors import ProtocolError
from protocols.kv_prefill.codec import encode_chunk
from tests.support.caches import arrays_for, chunk_for

mx = pytest.importorskip("mlx.core")

from engines.mlx.injection import Injection  # noqa: E402

pytestmark = pytest.mark.engine  # mlx-lm's caches take seconds to import

LAYERS = (AttentionLayer(2, 16, 8), AttentionLayer(2, 16, 8))


def layout_of(dtype: DType) -> CacheLayout:
    return CacheLayout(dtype, LAYERS, "fingerprint")


def to_float(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


@pytest.mark.parametrize("computed", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("wire", ["bfloat16", "float16", "float32"])
def test_every_element_ends_in_its_place(wire: DType, computed: Any):
    layout = layout_of(wire)
    injection = Injection(layout, LAYERS, 10, computed)
    rng = np.random.default_rng(5)
    sent = {}
    for start, end in ((4, 10), (0, 4)):
        for layer in range(2):
            arrays = arrays_for(rng, layout, layer, end - start)
            sent[layer, start] = arrays
            chunk, buffers = encode_chunk(layer, start, end, arrays, "planes")
            injection.add(chunk, memoryview(b"".join(buffers)))
    caches, usable = injection.take(10)
    assert usable == 10
    for layer, cache in enumerate(caches):
        keys, values, offset = cache.state  # pyright: ignore[reportGeneralTypeIssues]
        assert offset == 10
        assert keys.dtype == values.dtype == computed
        for index, array in enumerate((keys, values)):
            got = np.array(array.astype(mx.float32))[0, :, :10].transpose(1, 0, 2)
            want = to_float(np.concatenate([sent[layer, 0][index], sent[layer, 4][index]]), wire)
            np.testing.assert_array_equal(got, np.array(rounded(want, computed)))


def rounded(array: np.ndarray, dtype: Any) -> Any:
    """Convert as MLX does, but for what is too large: that becomes the largest there is."""
    if dtype == mx.float16:
        array = np.clip(array, -65504, 65504)
    return mx.array(array).astype(dtype).astype(mx.float32)


def test_a_layer_behind_the_others_limits_all():
    layout = layout_of("bfloat16")
    injection = Injection(layout, LAYERS, 8, mx.float32)
    for layer, end in ((0, 8), (1, 5)):
        chunk, payload = chunk_for(layout, layer, 0, end)
        injection.add(chunk, memoryview(payload))
    assert injection.take(8)[1] == 5


def test_no_more_than_the_limit_is_used():
    layout = layout_of("bfloat16")
    injection = Injection(layout, LAYERS, 8, mx.float32)
    for layer in range(2):
        chunk, payload = chunk_for(layout, layer, 0, 8)
        injection.add(chunk, memoryview(payload))
    assert injection.take(3)[1] == 3


def test_a_damaged_repetition_makes_positions_missing_until_it_comes_right():
    layout = layout_of("bfloat16")
    injection = Injection(layout, LAYERS, 8, mx.float32)
    for layer in range(2):
        chunk, payload = chunk_for(layout, layer, 0, 8)
        injection.add(chunk, memoryview(payload))
    chunk, payload = chunk_for(layout, 1, 3, 8)
    with pytest.raises(ProtocolError):
        injection.add(chunk, memoryview(payload[:-1] + b"\x99"))
    assert injection.take(8)[1] == 3
    injection.add(chunk, memoryview(payload))
    assert injection.take(8)[1] == 8


@pytest.mark.parametrize(("layer", "start", "end"), [(2, 0, 4), (0, 4, 9), (0, 8, 12)])
def test_a_chunk_from_outside_is_refused_and_harms_nothing(layer: int, start: int, end: int):
    layout = layout_of("bfloat16")
    wider = CacheLayout("bfloat16", (*LAYERS, LAYERS[0]), "fingerprint")
    injection = Injection(layout, LAYERS, 8, mx.float32)
    chunk, payload = chunk_for(wider, layer, start, end)
    with pytest.raises(ProtocolError):
        injection.add(chunk, memoryview(payload))
    assert injection.take(8)[1] == 0


def test_the_rest_may_come_in_another_dtype():
    injection = Injection(layout_of("bfloat16"), LAYERS, 8, mx.float32)
    for layer in range(2):
        chunk, payload = chunk_for(layout_of("bfloat16"), layer, 0, 5)
        injection.add(chunk, memoryview(payload))
    injection.expect(layout_of("float32"))
    assert injection.take(8)[1] == 5
    for layer in range(2):
        chunk, payload = chunk_for(layout_of("float32"), layer, 5, 8)
        injection.add(chunk, memoryview(payload))
    assert injection.take(8)[1] == 8
