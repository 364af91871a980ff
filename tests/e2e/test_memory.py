"""What a node holds while others come, and go with a goodbye or without one."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from loguru import logger

from tests.support.census import Census
from tests.support.counted_node import Answer
from tests.support.line_process import LineProcess, line_process

pytestmark = pytest.mark.e2e

IDLE_BYTES = 180 << 20
AT_A_TIME = 3
SOAK_S = 600.0

BOUNDED = re.compile(
    # Members are remembered for an hour, and those that said no goodbye dialled as long.
    r"Member$|NodeRecord|InterfaceRecord|ClusterView\._members|Cluster\._known_members"
    r"|_Known$|_Known\.|Dialer\._known|node\.discovery\.dialer\.Dialer\._keep_connected"
    # So are messages for minutes, until there are 1,000, or for some heartbeats.
    r"|ValidationCache|ValidationResult|Message$|LastSeenCache|GossipSub\.equivocation_detection"
    r"|MessageCache|CacheEntry|RPC$"
    # zeroconf keeps what it hears until its time to live is over.
    r"|DNS|QueryScheduler|AsyncListener|ServiceInfo|Announcement|PeerFound"
    # At most 10,000 peers that could not be dialled, 1,024 offenders; caches of addresses and ids.
    r"|_NegativePeerCache|_Account|OffenceLedger|Multiaddr$|ID$"
)
"""What may grow with every node that comes, since there is an end to it."""

OF_A_CONNECTION = ("SwarmConn", "NoiseSession", "YamuxConnection", "YamuxStream", "RpcQueue")


class Crowd:
    """Nodes that come and go round by round, around a node that is counted.

    Attributes:
        came: how many there have been.
    """

    def __init__(self, directory: Path, steady: LineProcess) -> None:
        self.came = 0
        self._directory = directory
        self._steady = steady
        self._nodes: LineProcess | None = None

    async def count(self) -> Answer:
        await self._steady.tell()
        return msgspec.json.decode(await self._steady.hear(), type=Answer)

    async def rounds(self, number: int) -> None:
        """Have nodes come and go with a goodbye, and others without, in turn."""
        for _ in range(number):
            async with self._running() as nodes:
                await self._arrive(nodes)
                await nodes.tell()
                await self._arrive(nodes)
                await nodes.kill()

    async def all_gone(self) -> Answer:
        """Wait until nobody is there any more."""
        with trio.fail_after(60):
            while True:
                said = await self.count()
                if set(said.states.values()) <= {"gone"} and not said.links:
                    return said
                await trio.sleep(0.2)

    async def _arrive(self, nodes: LineProcess) -> None:
        peers = (await nodes.hear()).decode().split()
        assert len(peers) == AT_A_TIME
        self.came += AT_A_TIME
        with trio.fail_after(60):
            while True:
                states = (await self.count()).states
                if all(states.get(peer) == "alive" for peer in peers):
                    return
                await trio.sleep(0.1)

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[LineProcess]:
        peer_id = (await self.count()).peer_id
        arguments = (str(self._directory), str(AT_A_TIME), peer_id)
        log = self._directory / "crowd.log"
        async with line_process("churning_nodes", log, *arguments) as nodes:
            yield nodes


@asynccontextmanager
async def crowd(directory: Path) -> AsyncGenerator[Crowd]:
    data, log = str(directory / "steady"), directory / "steady.log"
    async with line_process("counted_node", log, data) as steady:
        yield Crowd(directory, steady)


def grown(before: Census, after: Census, least: int) -> dict[str, int]:
    """Return what has grown by as many as `least`, and has no known bound."""
    was, now = before.counts | before.tasks, after.counts | after.tasks
    growth = {name: now[name] - was.get(name, 0) for name in now if not BOUNDED.match(name)}
    growth["files"] = after.files - before.files
    return {name: more for name, more in growth.items() if more >= least}


async def settled(
    around: Crowd, before: Census, least: int, *, no_connection: bool = False
) -> Answer:
    """Wait until what nodes left behind is forgotten; fails with what is not.

    Args:
        around: the nodes, none of which is there any more.
        before: what was held before they came.
        least: growth that counts.
        no_connection: whether a single connection that is still held fails, too.
    """
    leaked: dict[str, int] = {}
    with trio.move_on_after(45):
        while True:
            said = await around.all_gone()
            leaked = grown(before, said.census, least)
            if no_connection:
                held = said.census.counts
                leaked |= {name: held[name] for name in OF_A_CONNECTION if held.get(name)}
            if not leaked:
                return said
            await trio.sleep(1)
    raise AssertionError(f"of {around.came} nodes there remain: {leaked}")


async def test_nothing_is_kept_of_nodes_that_come_and_go(tmp_path: Path):
    async with crowd(tmp_path) as around:
        await around.rounds(1)
        before = await around.all_gone()
        came = around.came
        await around.rounds(2)
        after = await settled(around, before.census, (around.came - came) // 2)
        assert after.census.rss < IDLE_BYTES


@pytest.mark.soak
@pytest.mark.timeout(2 * SOAK_S)
async def test_memory_stays_flat_over_ten_minutes(tmp_path: Path):
    async with crowd(tmp_path) as around:
        await around.rounds(4)
        before, came = await around.all_gone(), around.came
        peak, end = before.census.rss, trio.current_time() + SOAK_S
        while trio.current_time() < end:
            await around.rounds(1)
            census = (await around.count()).census
            peak = max(peak, census.rss)
            logger.info("{} nodes, {:.1f} MB", around.came, census.rss / 1e6)
        after = await settled(around, before.census, (around.came - came) // 10, no_connection=True)
        assert peak < IDLE_BYTES
        # Caches of messages and of members are still filling up: some 10 kB a node.
        assert after.census.rss - before.census.rss < 16 << 20
