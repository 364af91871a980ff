"""Which blocks hold which request's tokens, followed from vLLM's scheduler step by step.

The attention metadata that a layer sees is no help: its rows come in the model runner's order,
which is not the scheduler's. What the scheduler says is complete and names requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

__all__ = ["BlockIds", "BlockTables", "Scheduled"]

BlockIds = tuple[list[int], ...]
"""A request's block ids in token order, one list per cache group."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's part of a step: tokens `[computed, computed + count)`."""

    request_id: str
    """vLLM's own id of the request."""
    computed: int
    """Tokens whose cache exists already, in an earlier step or in the prefix cache."""
    count: int
    blocks: BlockIds
    """Of all tokens up to `computed + count`."""


class BlockTables:
    """The block tables of all requests that have been scheduled and not finished."""

    def __init__(self) -> None:
        self._tables: dict[str, BlockIds] = {}

    def advance(self, output: SchedulerOutput) -> Iterator[Scheduled]:
        """Follow one step of the scheduler and yield every request's part of it."""
        counts = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            yield self._put(
                new.req_id, new.num_computed_tokens, counts[new.req_id], _copy(new.block_ids)
            )
        cached = output.scheduled_cached_reqs
        for request_id, computed, added in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            if request_id in cached.resumed_req_ids:
                # Preempted and back again: its blocks are other ones now.
                blocks = _copy(added or ())
            else:
                blocks = self._tables[request_id]
                for table, ids in zip(blocks, added or (), strict=added is not None):
                    table.extend(ids)
            yield self._put(request_id, computed, counts[request_id], blocks)

    def forget(self, request_id: str) -> None:
        """Drop a finished or aborted request."""
        self._tables.pop(request_id, None)

    def _put(self, request_id: str, computed: int, count: int, blocks: BlockIds) -> Scheduled:
        self._tables[request_id] = blocks
        return Scheduled(request_id, computed, count, blocks)


def _copy(blocks: Sequence[Sequence[int]]) -> BlockIds:
    return tuple(list(ids) for ids in blocks)
