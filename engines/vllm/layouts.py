"""Reading tokens out of vLLM's paged cache.

vLLM gives each layer one tensor `[blocks, kv_heads, block_size, content]`. On GPU backends the
content of a token is its key followed by its value. On the CPU a block's interior is packed: the
first half of each head's memory in a block is keys and the second values, in the orders that
`engines.vllm.packing` finds out. Readers copy just the blocks that a token range touches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engines.vllm.packing import Axis, PackedOrder

if TYPE_CHECKING:
    import torch

__all__ = ["CacheReader", "PackedReader", "Reading", "StandardReader", "as_bits"]

Array = npt.NDArray[np.generic]

_copier = ThreadPoolExecutor(1, thread_name_prefix="page-copier")


class Reading(Protocol):
    """A layer's cache on its way out of the pages."""

    @property
    def arrays(self) -> tuple[Array, Array]:
        """Keys and values, `[tokens, kv_heads, dim]`, C-contiguous; filled once `ready`."""
        ...

    def ready(self) -> bool:
        """Return whether the arrays are filled."""
        ...

    def wait(self) -> None:
        """Block until the arrays are filled."""
        ...


class DeviceReading(NamedTuple):
    """Arrays in pinned memory that the device copies to, or plain ones that are filled already."""

    arrays: tuple[Array, Array]
    """See `Reading.arrays`."""
    copied: torch.cuda.Event | None = None
    """Comes to pass once the arrays are filled; None when they are already."""

    def ready(self) -> bool:
        """See `Reading.ready`."""
        return self.copied is None or self.copied.query()

    def wait(self) -> None:
        """See `Reading.wait`."""
        if self.copied is not None:
            self.copied.synchronize()


class ThreadReading:
    """Arrays that another thread fills."""

    def __init__(self, job: Future[tuple[Array, Array]]) -> None:
        self._job = job

    @property
    def arrays(self) -> tuple[Array, Array]:
        """See `Reading.arrays`."""
        return self._job.result()

    def ready(self) -> bool:
        """See `Reading.ready`."""
        return self._job.done()

    def wait(self) -> None:
        """See `Reading.wait`."""
        self._job.result()


class CacheReader(Protocol):
    """Reads one layer's cache."""

    def read(self, blocks: Sequence[int], start: int, end: int) -> Reading:
        """Copy tokens `[start, end)` of the request whose block table is `blocks`."""
        ...


class StandardReader:
    """Reads pages whose tokens are a key followed by a value, whatever their strides.

    Args:
        pages: `[pages, kv_heads, page_size, k_dim + v_dim]`; a block of the block table is one
            page, or several where the attention kernels want smaller ones.
        block_size: tokens per block of the block table.
        k_dim: elements of a key.
    """

    def __init__(self, pages: torch.Tensor, block_size: int, k_dim: int) -> None:
        self._pages = pages
        self._page_size = pages.shape[2]
        self._pages_per_block = block_size // self._page_size
        self._k_dim = k_dim

    def read(self, blocks: Sequence[int], start: int, end: int) -> Reading:
        """See `CacheReader.read`."""
        import torch

        first = start // self._page_size
        last = -(-end // self._page_size)
        ids = _page_ids(blocks, first, last, self._pages_per_block)
        index = torch.tensor(ids, device=self._pages.device)
        # [pages, heads, page_size, content] to [tokens, heads, content]
        tokens = self._pages.index_select(0, index).transpose(1, 2).flatten(0, 1)
        tokens = tokens[start - first * self._page_size : end - first * self._page_size]
        parts = tokens[..., : self._k_dim], tokens[..., self._k_dim :]
        if not tokens.is_cuda:
            keys, values = (as_bits(part.contiguous()) for part in parts)
            return DeviceReading((keys, values))
        keys, values = (as_bits(_to_pinned(part.contiguous())) for part in parts)
        copied = torch.cuda.Event()
        copied.record()
        return DeviceReading((keys, values), copied)


class PackedReader:
    """Reads the CPU backend's pages, in a thread of its own.

    vLLM's threads wait for one another at every layer; a copy that runs in their gaps costs the
    step less than one that it waits for. A page does not change until the next step.

    Args:
        pages: `[pages, kv_heads, page_size, 2 * dim]`, contiguous.
        block_size: tokens per block of the block table.
        orders: how a head's keys and values lie in their halves of its part of a page.
    """

    def __init__(
        self, pages: torch.Tensor, block_size: int, orders: tuple[PackedOrder, PackedOrder]
    ) -> None:
        count, heads, self._page_size, content = pages.shape
        self._pages_per_block = block_size // self._page_size
        half = self._page_size * content // 2
        interiors = as_bits(pages).reshape(count, heads, 2, half)
        self._halves = tuple(
            _open_half(interiors[:, :, side], order) for side, order in enumerate(orders)
        )

    def read(self, blocks: Sequence[int], start: int, end: int) -> Reading:
        """See `CacheReader.read`."""
        first = start // self._page_size
        last = -(-end // self._page_size)
        ids = _page_ids(blocks, first, last, self._pages_per_block)
        wanted = slice(start - first * self._page_size, end - first * self._page_size)
        return ThreadReading(_copier.submit(self._copy, ids, wanted))

    def _copy(self, ids: Sequence[int], wanted: slice) -> tuple[Array, Array]:
        keys, values = (half.read(ids)[wanted] for half in self._halves)
        return keys, values


class _Half(Protocol):
    """All pages' keys, or all pages' values."""

    def read(self, ids: Sequence[int]) -> Array:
        """Copy whole pages to `[tokens, kv_heads, dim]`."""
        ...


class _StridedHalf:
    """An order that is a strided array: `view` is `[pages, *token digits, heads, *digits]`."""

    def __init__(self, interiors: Array, order: PackedOrder, tokens: Axis, elements: Axis) -> None:
        self._dtype = interiors.dtype
        self._shape = order.offsets.shape[0], interiors.shape[1], order.offsets.shape[1]
        wide = _widened(interiors, tokens, elements)
        if wide is not None:
            interiors, tokens, elements = wide
        step = interiors.itemsize
        self._view = np.lib.stride_tricks.as_strided(
            interiors,
            (
                interiors.shape[0],
                *(size for size, _ in tokens),
                interiors.shape[1],
                *(size for size, _ in elements),
            ),
            (
                interiors.strides[0],
                *(stride * step for _, stride in tokens),
                interiors.strides[1],
                *(stride * step for _, stride in elements),
            ),
            writeable=False,
        )

    def read(self, ids: Sequence[int]) -> Array:
        page_size, heads, dim = self._shape
        pages = np.empty((len(ids), *self._view.shape[1:]), self._view.dtype)
        for begin, end in _runs(ids):
            pages[begin:end] = self._view[ids[begin] : ids[end - 1] + 1]
        return pages.view(self._dtype).reshape(len(ids) * page_size, heads, dim)


class _GatheredHalf:
    """Any order, through an index of every element."""

    def __init__(self, interiors: Array, order: PackedOrder) -> None:
        self._interiors = interiors
        self._shape = order.offsets.shape[0], interiors.shape[1], order.offsets.shape[1]
        self._offsets = order.offsets

    def read(self, ids: Sequence[int]) -> Array:
        page_size, heads, dim = self._shape
        pages = np.empty((len(ids), page_size, heads, dim), self._interiors.dtype)
        for place, page in enumerate(ids):
            for head in range(heads):
                pages[place, :, head] = self._interiors[page, head].take(self._offsets)
        return pages.reshape(len(ids) * page_size, heads, dim)


def as_bits(tensor: torch.Tensor) -> Array:
    """Return a CPU tensor's memory as numpy sees it, bfloat16 as uint16."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()


def _open_half(interiors: Array, order: PackedOrder) -> _Half:
    if order.tokens is not None and order.elements is not None:
        return _StridedHalf(interiors, order, order.tokens, order.elements)
    return _GatheredHalf(interiors, order)


def _widened(interiors: Array, tokens: Axis, elements: Axis) -> tuple[Array, Axis, Axis] | None:
    """Where pairs of 16-bit elements always stay together, copy them as one of 32 bits."""
    pair = 2
    strides = [stride for _, stride in (*tokens, *elements[:-1])]
    if (
        interiors.itemsize != 2
        or elements[-1:] != ((pair, 1),)
        or any(stride % pair for stride in strides)
        or interiors.shape[-1] % pair
    ):
        return None

    def halve(axis: Axis) -> Axis:
        return tuple((size, stride // pair) for size, stride in axis)

    return interiors.view(np.uint32), halve(tokens), halve(elements[:-1])


def _page_ids(blocks: Sequence[int], first: int, last: int, pages_per_block: int) -> list[int]:
    if pages_per_block == 1:
        return list(blocks[first:last])
    return [
        blocks[page // pages_per_block] * pages_per_block + page % pages_per_block
        for page in range(first, last)
    ]


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut `ids` into runs of consecutive ones, as (begin, end) places."""
    begin = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] != ids[place - 1] + 1:
            yield begin, place
            begin = place


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Start a copy to page-locked memory, which the device writes while the host goes on."""
    import torch

    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
