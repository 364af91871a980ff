"""Nodes in network namespaces find each other, whatever their networks are like."""

import shutil

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


def copy_identity(source, target):
    target.mkdir()
    for name in ("identity.key", "state.json"):
        shutil.copy(source / name, target / name)


async def test_copied_data_directory_is_refused_on_another_machine_and_without_mdns(tmp_path):
    with network(3) as net:
        # The copy hears nothing of the original but through the third node.
        net.eat_multicast(2)
        async with (
            node(tmp_path / "a", prefix=net.prefix(0)) as a,
            node(tmp_path / "c", prefix=net.prefix(1)) as c,
        ):
            await wait_for(lambda: a.sees(c) and c.sees(a), a, c)
            copy_identity(tmp_path / "a", tmp_path / "b")
            peer = ("--peer", f"{c.addresses[0]}/p2p/{c.peer_id}")
            async with node(tmp_path / "b", *peer, prefix=net.prefix(2)) as b:
                await wait_for(lambda: b.process.returncode is not None, a, b, c)
                await wait_for(lambda: "data directory was copied" in b.log, b)
                assert b.process.returncode != 0
            assert a.process.returncode is None, "the one that was there first goes on"


async def test_of_two_copies_that_start_at_once_one_goes_on(tmp_path):
    async with node(tmp_path / "a", "--interface", "lo") as a:
        await wait_for(lambda: a.status is not None, a)
    copy_identity(tmp_path / "a", tmp_path / "b")
    with network(2) as net:
        async with (
            node(tmp_path / "a", prefix=net.prefix(0)) as a,
            node(tmp_path / "b", prefix=net.prefix(1)) as b,
        ):
            ended = lambda: {a.process.returncode, b.process.returncode} != {None}  # noqa: E731
            await wait_for(ended, a, b)
            await wait_for(lambda: "data directory was copied" in a.log + b.log, a, b)
            assert None in {a.process.returncode, b.process.returncode}


async def test_network_that_eats_multicast_is_told_of_and_peers_that_are_named_are_met(tmp_path):
    with network(2) as net:
        net.eat_multicast(0)
        async with node(tmp_path / "a", prefix=net.prefix(0)) as a:
            await wait_for(lambda: a.status is not None and bool(a.addresses), a)
            peer = ("--peer", f"{a.addresses[0]}/p2p/{a.peer_id}")
            async with node(tmp_path / "b", *peer, prefix=net.prefix(1)) as b:
                await wait_for(lambda: a.sees(b) and b.sees(a), a, b)
                await wait_for(lambda: "none was heard over mDNS" in b.log, b)
                assert "UDP 5353" in b.log
                assert "--peer" in b.log


async def test_twenty_virtual_interfaces_beside_do_not_keep_nodes_apart(tmp_path):
    with network(2) as net:
        for number in range(20):
            name = f"veth{number}"
            net.run(0, *f"ip link add {name} type veth peer name x{name}".split())
            net.run(0, *f"ip address add 172.{16 + number}.0.1/16 dev {name}".split())
            for end in (name, f"x{name}"):
                net.run(0, "ip", "link", "set", end, "up")
        async with (
            node(tmp_path / "a", prefix=net.prefix(0)) as a,
            node(tmp_path / "b", prefix=net.prefix(1)) as b,
        ):
            await wait_for(lambda: a.sees(b) and b.sees(a), a, b)
            await wait_for(lambda: "mDNS has no room for all addresses" in a.log, a)
            assert over(b, "net0")
