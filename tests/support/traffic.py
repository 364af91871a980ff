"""Clients that ask nodes without a pause, and what is known of a failed request's cause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from tests.support.toy_cluster import Reply, ToyCluster

__all__ = ["Traffic", "streams_begun", "traffic"]


class Traffic:
    """The replies so far, by the node that was asked."""

    def __init__(self) -> None:
        self.replies: dict[int, list[Reply]] = {}
        self._since: dict[int, int] = {}

    @property
    def count(self) -> int:
        return sum(len(replies) for replies in self.replies.values())

    @property
    def broken(self) -> int:
        return len(self.failures())

    def failures(self, lost: Iterable[str] = (), *, at: int | None = None) -> list[Reply]:
        """Return what did not come right and is not the fault of a lost node.

        An answer that a lost node was writing is the only thing that may break off with it, and
        the error says who wrote it.

        Args:
            lost: peer ids.
            at: of the requests to this node alone.
        """
        lost = tuple(lost)
        return [
            reply
            for index, replies in self.replies.items()
            for reply in replies
            if at in (None, index)
            and not reply.right
            and not (reply.text and any(f"The node {each}" in reply.error for each in lost))
        ]

    def going_on(self) -> bool:
        """Whether each node has given two right answers since this was first asked."""
        answered = {
            index: sum(reply.right for reply in replies) for index, replies in self.replies.items()
        }
        self._since = self._since or answered
        return all(answered[index] >= before + 2 for index, before in self._since.items())


@asynccontextmanager
async def traffic(cluster: ToyCluster, indices: Iterable[int]) -> AsyncIterator[Traffic]:
    """Ask each of some nodes again and again while open; what is on its way at the end is awaited.

    Every third prompt is long, and asks to be prefilled elsewhere.
    """
    so_far, ended = Traffic(), trio.Event()

    async def ask(index: int) -> None:
        replies = so_far.replies[index] = []
        number = 0
        while not ended.is_set():
            number += 1
            words = f"to {index} number {number} " + "and so on " * (60 if number % 3 == 0 else 1)
            policy = "remote" if number % 3 == 0 else "auto"
            replies.append(await cluster.ask(index, words, prefill=policy))
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        for index in indices:
            nursery.start_soon(ask, index)
        yield so_far
        ended.set()


@asynccontextmanager
async def streams_begun(cluster: ToyCluster, indices: Iterable[int]) -> AsyncIterator[list[Reply]]:
    """Open once each of some nodes has begun an answer; close when those have ended.

    Yields:
        the answers, which are there once the context is left.
    """
    replies: list[Reply] = []
    begun: list[trio.Event] = []
    token = trio.lowlevel.current_trio_token()

    async def stream(index: int, first: trio.Event) -> None:
        def tell(text: str) -> None:
            token.run_sync_soon(first.set)

        replies.append(await cluster.ask_until(index, f"across at {index}", tell, prefill="local"))

    async with trio.open_nursery() as nursery:
        for index in indices:
            begun.append(trio.Event())
            nursery.start_soon(stream, index, begun[-1])
        with trio.fail_after(30):
            for first in begun:
                await first.wait()
        yield replies
