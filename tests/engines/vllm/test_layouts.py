"""Reading tokens out of pages, against pages built element by element."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.vllm.layouts import PackedReader, StandardReader
from engines.vllm.packing import Axis, PackedOrder

PAGES, HEADS, SIZE, DIM = 7, 3, 8, 4
AMX_KEYS: tuple[Axis, Axis] = ((2, 16), (4, 2)), ((2, 8), (2, 1))
"""As AMX tiles: pairs of elements together, tokens next to one another."""
AMX_VALUES: tuple[Axis, Axis] = ((4, 4), (2, 1)), ((2, 16), (2, 2))
ROWS: tuple[Axis, Axis] = ((SIZE, DIM),), ((DIM, 1),)


def order_of(axes: tuple[Axis, Axis]) -> PackedOrder:
    tokens, elements = (_offsets(axis) for axis in axes)
    offsets = tokens[:, None] + elements
    assert sorted(offsets.reshape(-1)) == list(range(SIZE * DIM))
    return PackedOrder(offsets, *axes)


def _offsets(axis: Axis) -> np.ndarray:
    offsets = np.zeros(1, np.int64)
    for size, stride in axis:
        offsets = (offsets[:, None] + np.arange(size) * stride).reshape(-1)
    return offsets


def scrambled() -> PackedOrder:
    offsets = np.random.default_rng(1).permutation(SIZE * DIM).reshape(SIZE, DIM)
    return PackedOrder(offsets, None, None)


def packed_pages(content: np.ndarray, orders: tuple[PackedOrder, PackedOrder]) -> torch.Tensor:
    """Lay `[2, pages, size, heads, dim]` out the way the CPU backend does."""
    pages = np.empty((PAGES, HEADS, 2, SIZE * DIM), np.uint16)
    for page, head, side in np.ndindex(PAGES, HEADS, 2):
        pages[page, head, side, orders[side].offsets] = content[side, page, :, head]
    return torch.from_numpy(pages).view(torch.bfloat16).reshape(PAGES, HEADS, SIZE, 2 * DIM)


def some_content() -> np.ndarray:
    shape = 2, PAGES, SIZE, HEADS, DIM
    return np.random.default_rng(0).integers(0, 1 << 16, shape).astype(np.uint16)


def expected(content: np.ndarray, blocks: list[int], start: int, end: int) -> np.ndarray:
    return content[:, blocks].reshape(2, -1, HEADS, DIM)[:, start:end]


@st.composite
def ranges(draw: st.DrawFn) -> tuple[list[int], int, int]:
    blocks = draw(st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=5, unique=True))
    end = draw(st.integers(1, len(blocks) * SIZE))
    return blocks, draw(st.integers(0, end - 1)), end


@pytest.mark.parametrize(
    "orders",
    [
        (order_of(AMX_KEYS), order_of(AMX_VALUES)),
        (order_of(ROWS), order_of(ROWS)),
        (scrambled(), order_of(AMX_KEYS)),
    ],
    ids=["tiles", "rows", "scrambled"],
)
@given(where=ranges())
@settings(max_examples=40, deadline=None)
def test_packed_pages(
    orders: tuple[PackedOrder, PackedOrder], where: tuple[list[int], int, int]
) -> None:
    content = some_content()
    reading = PackedReader(packed_pages(content, orders), SIZE, orders).read(*where)
    reading.wait()
    assert reading.ready()
    for found, exact in zip(reading.arrays, expected(content, *where), strict=True):
        assert found.flags.c_contiguous
        assert np.array_equal(found, exact)


@pytest.mark.parametrize("token_major", [False, True])
@given(where=ranges())
@settings(max_examples=40, deadline=None)
def test_standard_pages_of_any_strides(
    token_major: bool, where: tuple[list[int], int, int]
) -> None:
    content = some_content()
    whole = torch.from_numpy(np.concatenate(list(content), axis=-1)).view(torch.bfloat16)
    pages = whole.transpose(1, 2)
    if not token_major:
        pages = pages.contiguous()
    reading = StandardReader(pages, SIZE, DIM).read(*where)
    for found, exact in zip(reading.arrays, expected(content, *where), strict=True):
        assert found.flags.c_contiguous
        assert np.array_equal(found, exact)


def test_keys_and_values_of_different_sizes() -> None:
    pages = torch.arange(2 * 1 * 2 * 5, dtype=torch.float32).reshape(2, 1, 2, 5)
    keys, values = StandardReader(pages, 2, 3).read([1], 0, 2).arrays
    assert keys.tolist() == [[[10, 11, 12]], [[15, 16, 17]]]
    assert values.tolist() == [[[13, 14]], [[18, 19]]]


def test_blocks_of_several_pages() -> None:
    """Attention kernels may want smaller pages than the block table's blocks."""
    content = some_content()
    orders = order_of(AMX_KEYS), order_of(AMX_VALUES)
    packed = PackedReader(packed_pages(content, orders), 2 * SIZE, orders)
    pages = [4, 5, 0, 1]
    for found, exact in zip(
        packed.read([2, 0], 3, 4 * SIZE - 1).arrays,
        expected(content, pages, 3, 4 * SIZE - 1),
        strict=True,
    ):
        assert np.array_equal(found, exact)


def test_what_was_read_stays_when_the_page_is_used_again() -> None:
    content = some_content()
    orders = order_of(AMX_KEYS), order_of(ROWS)
    pages = packed_pages(content, orders)
    keys, values = PackedReader(pages, SIZE, orders).read([3], 0, SIZE).arrays
    pages.zero_()
    assert np.array_equal(keys, content[0, 3])
    assert np.array_equal(values, content[1, 3])
