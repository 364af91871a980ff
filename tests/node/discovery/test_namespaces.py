"""Nodes in network namespaces find each other, whatever their networks are like."""

import pytest

from tests.support.netns import network
from tests.support.nodes import node, wait_for

pytestmark = pytest.mark.e2e


async def test_nodes_with_nothing_but_ipv6_link_local_addresses_form_a_cluster(tmp_path):
    with network(2, ipv4=False, bridges=2) as net:
        async with (
            node(tmp_path / "a", prefix=net.prefix(0)) as a,
            node(tmp_path / "b", prefix=net.prefix(1)) as b,
        ):
            await wait_for(lambda: a.sees(b) and b.sees(a) and a.master == b.master, a, b)
            assert all(each.startswith("/ip6/fe80::") for each in a.addresses)
            assert all(link["interface"] in {"net0", "net1"} for link in (*a.links, *b.links))
