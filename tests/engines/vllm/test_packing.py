"""Finding out how the CPU backend packs a block."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.vllm.packing import Axis, factorise, probe


def offsets_of(axis: Axis) -> np.ndarray:
    offsets = np.zeros(1, np.int64)
    for size, stride in axis:
        offsets = (offsets[:, None] + np.arange(size) * stride).reshape(-1)
    return offsets


@given(
    st.lists(st.tuples(st.integers(2, 5), st.integers(1, 1000)), max_size=4).map(tuple),
    st.integers(0, 50),
)
def test_digits_are_found_again(axis: Axis, base: int) -> None:
    found = factorise(offsets_of(axis) + base)
    assert found is not None
    assert np.array_equal(offsets_of(found), offsets_of(axis))


def test_digits_of_a_tile() -> None:
    assert factorise(np.array([0, 1, 8, 9])) == ((2, 8), (2, 1))
    assert factorise(np.arange(64)) == ((64, 1),)
    assert factorise(np.array([5])) == ()


@pytest.mark.parametrize("offsets", [[0, 1, 3, 2], [0, 1, 2, 4], [0, 2, 1], [0, 1, 8, 10]])
def test_other_orders_have_no_digits(offsets: list[int]) -> None:
    assert factorise(np.array(offsets)) is None


@pytest.mark.engine
@pytest.mark.parametrize("isa", ["vec", "vec16", "the machine's own"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_probed_order_is_where_the_kernel_stores(head_dim: int, isa: str) -> None:
    """Random blocks stored by vLLM's own kernel come back through the probed offsets."""
    import torch
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    block_size, dtype = 128, torch.bfloat16
    if isa == "the machine's own":
        isa = _get_attn_isa(dtype, block_size, head_dim)
    stored = torch.randn(2, block_size, 1, head_dim).to(dtype)
    block = torch.zeros(1, 1, 2 * block_size, head_dim, dtype=dtype)
    halves = block.chunk(2, dim=2)
    slots = torch.arange(block_size)
    ops.cpu_attn_reshape_and_cache(stored[0], stored[1], halves[0], halves[1], slots, isa)
    orders = probe(block_size, head_dim, dtype, isa)
    for half, order, tokens in zip(halves, orders, stored, strict=True):
        assert torch.equal(half.reshape(-1)[torch.from_numpy(order.offsets)], tokens[:, 0])
        assert order.tokens is not None
        assert order.elements is not None
