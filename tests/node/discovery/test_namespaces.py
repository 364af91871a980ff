"""Nodes in network namespaces find each other, whatever their networks are like."""

import pytest
from loguru import logger

from tests.support.netns import network
from tests.support.nodes import node, wait_for

pytestmark = pytest.mark.e2e


def says(node, ip):
    """Whether a node says that it is at an address."""
    return any(f"/{ip}" in each for each in node.addresses)


def over(node, interface):
    """Whether a node has a link over one of its interfaces."""
    return any(link["interface"] == interface for link in node.links)


async def test_nodes_with_nothing_but_ipv6_link_local_addresses_form_a_cluster(tmp_path):
    with network(2, ipv4=False, bridges=2) as net:
        async with (
            node(tmp_path / "a", prefix=net.prefix(0)) as a,
            node(tmp_path / "b", prefix=net.prefix(1)) as b,
        ):
            await wait_for(lambda: a.sees(b) and b.sees(a) and a.master == b.master, a, b)
            assert all(each.startswith("/ip6/fe80::") for each in a.addresses)
            assert all(link["interface"] in {"net0", "net1"} for link in (*a.links, *b.links))


async def test_interface_that_is_plugged_in_later_is_used_and_forgotten_when_it_goes(tmp_path):
    with network(2, bridges=0) as net:
        for bridge in range(2):
            net.make_bridge(bridge)
            net.plug_in(bridge, bridge)
        async with (
            node(tmp_path / "a", prefix=net.prefix(0)) as a,
            node(tmp_path / "b", prefix=net.prefix(1)) as b,
        ):
            await wait_for(lambda: a.master is not None and b.master is not None, a, b)
            for time in ("the first time", "again"):
                net.plug_in(0, 1)
                found_s = await wait_for(lambda: over(a, "net1") and a.sees(b), a, b)
                logger.info("found {:.2f} s after it was plugged in {}", found_s, time)
                assert says(a, "10.78.0.1")
                net.unplug(0, 1)
                await wait_for(lambda: not says(a, "10.78") and not a.links, a)
            assert says(a, "10.77.0.1")
