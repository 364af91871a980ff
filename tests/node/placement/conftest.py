"""Clusters of toy nodes that have models on disk, some of them loaded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support.toy_nodes import ToyNode, readable_failures, toy_node, until

Options: TypeAlias = dict[str, Any]
Clusters: TypeAlias = Callable[..., AbstractAsyncContextManager[list[ToyNode]]]


@pytest.fixture
def toys(tmp_path: Path) -> Clusters:
    """Run nodes that know each other, each of the given options, and one master."""

    @asynccontextmanager
    async def run(*nodes: Options) -> AsyncIterator[list[ToyNode]]:
        async with readable_failures(), AsyncExitStack() as stack:
            running: list[ToyNode] = []
            for index, options in enumerate(nodes):
                given = dict(options)
                roles, engine = given.pop("roles", ()), given.pop("engine", ())
                start = toy_node(tmp_path / str(index), roles, *engine, **given)
                running.append(await stack.enter_async_context(start))
            await until(lambda: agree(running), 40)
            yield running

    return run


def agree(nodes: list[ToyNode]) -> bool:
    """Whether all know of each other's disks and instances, and of one master."""
    masters = {node.cluster.master for node in nodes}
    return (
        len(masters) == 1
        and None not in masters
        and all(all_known(node, nodes) for node in nodes)
        and all(each.state == "ready" for node in nodes for each in node.instances)
    )


def all_known(node: ToyNode, others: list[ToyNode]) -> bool:
    """Whether a node's view has the others as they are."""
    linked = {link.peer_id for link in node.cluster.links}
    return len(linked) == len(others) - 1 and all(
        node.knows(other)
        and node.cluster.view.is_alive(other.peer_id)
        and bool(other.cluster.own_record.models)
        and node.cluster.view.get(other.peer_id).record.models == other.cluster.own_record.models  # pyright: ignore[reportOptionalMemberAccess]
        for other in others
    )
