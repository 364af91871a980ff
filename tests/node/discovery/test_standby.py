"""Two machines with two cables between them: one is used, and the other is there when it breaks."""

from pathlib import Path

import pytest
from loguru import logger

from tests.support.netns import network
from tests.support.nodes import NodeProcess, node, wait_for

pytestmark = pytest.mark.e2e

CLASSES = ("--class", "net0=ethernet", "--class", "net1=thunderbolt")


def used(one: NodeProcess, other: NodeProcess) -> str:
    """Return the interface that a node uses towards another; empty without any."""
    rows = (each for each in one.links if each["to"] == other.peer_id and each["in_use"])
    return next((each["interface"] for each in rows), "")


def linked(one: NodeProcess, other: NodeProcess) -> list[str]:
    return sorted(each["interface"] for each in one.links if each["to"] == other.peer_id)


async def test_the_loss_of_the_better_cable_is_a_fallback_and_no_suspicion(tmp_path: Path):
    with network(2, bridges=2) as net:
        async with (
            node(tmp_path / "a", *CLASSES, prefix=net.prefix(0)) as a,
            node(tmp_path / "b", *CLASSES, prefix=net.prefix(1)) as b,
        ):

            async def both_use(interface: str) -> float:
                return await wait_for(
                    lambda: used(a, b) == used(b, a) == interface, a, b, seconds=30
                )

            await both_use("net1")
            await wait_for(lambda: linked(a, b) == linked(b, a) == ["net0", "net1"], a, b)
            assert {each["class"] for each in a.links} == {"ethernet", "thunderbolt"}

            net.set_cable(1, plugged=False, bridge=1)
            fallback_s = await both_use("net0")
            net.set_cable(1, plugged=True, bridge=1)
            taken_up_s = await both_use("net1")
            assert "is suspect" not in a.log + b.log
            assert a.sees(b)
            assert b.sees(a)
            logger.info("fallback after {:.2f} s, taken up after {:.2f} s", fallback_s, taken_up_s)


async def test_both_ends_give_a_link_the_class_of_its_worse_end(tmp_path: Path):
    with network(2, bridges=2) as net:
        better = ("--class", "net0=thunderbolt", "--class", "net1=ethernet")
        worse = ("--class", "net0=wifi", "--class", "net1=ethernet")
        async with (
            node(tmp_path / "a", *better, prefix=net.prefix(0)) as a,
            node(tmp_path / "b", *worse, prefix=net.prefix(1)) as b,
        ):
            for one, other in ((a, b), (b, a)):
                await wait_for(
                    lambda one=one, other=other: (
                        {each["interface"]: each["class"] for each in one.links}
                        == {"net0": "wifi", "net1": "ethernet"}
                        and used(one, other) == "net1"
                    ),
                    *(a, b),
                )
