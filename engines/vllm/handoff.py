"""Where an engine and its KV connector meet.

vLLM makes the connector by itself, from a module path and a dictionary; the engine lives in the
same process and thread. The engine opens a `Handoff` in the `handoffs` registry, gives vLLM its
key, and the connector looks it up there.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engines.vllm.layouts import CacheReader, Reading
from engines.vllm.schedule import BlockIds, Scheduled

if TYPE_CHECKING:
    import numpy as np
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = ["Handoff", "Job", "OpenLayer", "Registry", "Slice", "handoffs"]

MAX_TOKENS = 1024
"""Tokens per chunk at most: more would make the receiver wait for what is ready."""


class Job(Protocol):
    """One request, as the connector sees it."""

    def scheduled(self, computed: int, count: int) -> tuple[int, int]:
        """Hear that tokens `[computed, computed + count)` are about to be computed.

        Returns:
            The token range whose cache is wanted after this step; empty for none.
        """
        ...

    def take(self, layer: int, start: int, end: int, arrays: Sequence[np.ndarray]) -> None:
        """Take one layer's arrays of tokens `[start, end)`."""
        ...

    def fail(self, reason: str) -> None:
        """Hear that what was wanted cannot be had."""
        ...


@dataclass(frozen=True, slots=True)
class OpenLayer:
    """One layer of the loaded model, ready to be read."""

    index: int
    group: int
    reader: CacheReader


class Slice(NamedTuple):
    """What one step is to hand out of one request."""

    job: Job
    start: int
    end: int
    blocks: BlockIds


class _Copying(NamedTuple):
    job: Job
    layer: int
    start: int
    end: int
    reading: Reading


class Handoff:
    """Hands out what vLLM computes to the jobs that want it, layer by layer."""

    def __init__(self) -> None:
        self.config: KVCacheConfig | None = None
        """Set by the connector when vLLM makes it."""
        self.caches: Mapping[str, torch.Tensor] = {}
        """Each layer's pages by the layer's name; set by the connector, once they exist."""
        self._layers: Mapping[str, OpenLayer] = {}
        self._jobs: dict[str, Job] = {}
        self._arrived: set[str] = set()
        self._copying: deque[_Copying] = deque()

    def open_layers(self, layers: Mapping[str, OpenLayer]) -> None:
        """Say how to read each layer, by vLLM's name of it."""
        self._layers = layers

    def add(self, request_id: str, job: Job) -> None:
        """Follow the request that vLLM calls `request_id`."""
        self._jobs[request_id] = job

    def remove(self, request_id: str) -> None:
        """Stop following a request; unknown ones are no error."""
        self._jobs.pop(request_id, None)

    def plan(self, part: Scheduled) -> Slice | None:
        """Tell the request's job of a step to come; return what is to be handed out after it."""
        job = self._jobs.get(part.request_id)
        if job is None:
            return None
        start, end = job.scheduled(part.computed, part.count)
        return Slice(job, start, end, part.blocks) if start < end else None

    def layer_computed(self, name: str, slices: Sequence[Slice]) -> None:
        """Hand out one layer, which holds this step's tokens now."""
        layer = self._layers.get(name)
        if layer is None:
            return
        self._arrived.add(name)
        for part in slices:
            blocks = part.blocks[layer.group]
            for start in range(part.start, part.end, MAX_TOKENS):
                end = min(start + MAX_TOKENS, part.end)
                reading = layer.reader.read(blocks, start, end)
                self._copying.append(_Copying(part.job, layer.index, start, end, reading))
        while self._copying and self._copying[0].reading.ready():
            self._give(self._copying.popleft())

    def step_computed(self, slices: Sequence[Slice]) -> None:
        """Finish a step: wait for what is being copied, and miss what did not come.

        A layer that was replayed inside a CUDA graph, say, never reaches the connector.
        """
        while self._copying:
            self._copying[0].reading.wait()
            self._give(self._copying.popleft())
        missing = self._layers.keys() - self._arrived
        self._arrived.clear()
        for part in slices if missing else ():
            part.job.fail(
                f"{len(missing)} of {len(self._layers)} layers did not hand out "
                f"tokens {part.start} to {part.end}, {min(missing)} among them"
            )

    def _give(self, copied: _Copying) -> None:
        copied.job.take(copied.layer, copied.start, copied.end, copied.reading.arrays)


class Registry:
    """The open hand-offs of this process."""

    def __init__(self) -> None:
        self._open: dict[str, Handoff] = {}
        self._numbers = itertools.count(1)

    def open(self) -> tuple[str, Handoff]:
        """Open a hand-off and return the key under which a connector finds it."""
        key = f"handoff-{next(self._numbers)}"
        handoff = self._open[key] = Handoff()
        return key, handoff

    def find(self, key: str) -> Handoff:
        """Return the hand-off opened under `key`.

        Raises:
            LookupError: there is none, or no longer.
        """
        try:
            return self._open[key]
        except KeyError:
            raise LookupError(f"no engine of this process has opened hand-off {key!r}") from None

    def close(self, key: str) -> None:
        """Forget a hand-off; unknown ones are no error."""
        self._open.pop(key, None)


handoffs = Registry()
"""This process's registry: vLLM makes connectors, so nothing else can be given to them."""
