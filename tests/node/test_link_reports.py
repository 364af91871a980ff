"""Nodes tell each other of their links, for whoever draws the whole cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from node.link_reports import ANSWER_S, LinkReports
from node.messages import write_message
from protocols.status import PROTOCOL_ID, LinkReport, LinkStatus
from tests.support.toy_nodes import ToyNode, toy_nodes, until

BARE = ((), ())


@asynccontextmanager
async def members(directory: Path, count: int) -> AsyncIterator[list[ToyNode]]:
    """Run nodes without engines until each knows the others."""
    async with toy_nodes(directory, *[BARE] * count) as nodes:
        ids = {node.peer_id for node in nodes}
        await until(lambda: all(ids <= alive(node) for node in nodes))
        yield nodes


def alive(node: ToyNode) -> set[str]:
    members = node.cluster.view.members
    return {each.record.peer_id for each in members if each.state == "alive"}


def pairs(status):
    return {(link.source, link.to) for link in status.links}


def every_pair(*nodes: ToyNode):
    ids = {node.peer_id for node in nodes}
    return {(one, other) for one in ids for other in ids if one != other}


async def test_the_document_has_the_links_of_every_node(tmp_path: Path):
    async with members(tmp_path, 3) as nodes:
        for node in nodes:
            status = await node.cluster.full_status()
            assert pairs(status) == every_pair(*nodes)
            assert status.links_missing_from == ()
            for one, other in every_pair(*nodes):
                used = [x for x in status.links if (x.source, x.to) == (one, other) and x.in_use]
                assert len(used) == 1
            own = node.cluster.status()
            assert {link.source for link in own.links} == {node.peer_id}


async def hang(stream):
    await trio.sleep_forever()


async def lie(stream):
    link = LinkStatus("nobody", "me", "ethernet", "", None, None, True, "")
    await write_message(stream, LinkReport((link,)))


async def babble(stream):
    await stream.send(b"\x00\x00\x00\x05hello")


async def hang_up(stream):
    await stream.reset()


@pytest.mark.parametrize("answer", [hang, lie, babble, hang_up])
async def test_a_node_that_does_not_tell_is_left_out_and_named(tmp_path: Path, answer):
    async with members(tmp_path, 3) as (one, two, bad):
        bad.cluster.set_handler(PROTOCOL_ID, answer)
        began = trio.current_time()
        status = await one.cluster.full_status()
        assert trio.current_time() - began < ANSWER_S + 2
        assert status.links_missing_from == (bad.peer_id,)
        assert {link.source for link in status.links} == {one.peer_id, two.peer_id}


async def test_who_looks_often_does_not_ask_often(tmp_path: Path):
    asked = 0

    async def count(stream):
        nonlocal asked
        asked += 1
        await write_message(stream, LinkReport(()))

    async with members(tmp_path, 2) as (one, other):
        other.cluster.set_handler(PROTOCOL_ID, count)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(one.cluster.full_status)
        assert 1 <= asked < 10


async def test_a_stranger_is_told_nothing(tmp_path: Path):
    async with members(tmp_path, 2) as (one, other):
        own = one.cluster.status().links
        for is_member, told in ((True, own), (False, None)):
            reports = LinkReports(lambda: own, lambda _: is_member, one.cluster.open_stream)  # noqa: B023
            one.cluster.set_handler(PROTOCOL_ID, reports.serve)
            asking = LinkReports(tuple, lambda _: True, other.cluster.open_stream)
            assert (await asking.ask([one.peer_id])).get(one.peer_id) == told
