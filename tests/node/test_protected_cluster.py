"""Clusters of one name on one network: with a secret, with another, and with none."""

import pytest
import trio

from node.discovery.announcement import Announcement
from node.discovery.mdns import mdns
from node.secret import ClusterSecret
from tests.node.test_host import LO
from tests.support.nodes import node, wait_for

pytestmark = pytest.mark.e2e

OURS, THEIRS = "our secret, long enough", "their secret, long enough"


async def announced(seconds=20.0, expected=()):
    """Listen on mDNS until all of `expected` were heard; return cluster by peer id."""
    heard = {}
    send, receive = trio.open_memory_channel(100)
    listener = Announcement("listener", "listener", 1, ())
    async with mdns(send) as service:
        await trio.to_thread.run_sync(service.apply, listener, [LO])
        with trio.fail_after(seconds):
            async for event in receive:
                heard[event.announcement.peer_id] = event.announcement.cluster
                if set(expected) <= set(heard):
                    break
    return heard


async def test_nodes_with_other_secrets_or_none_form_clusters_of_their_own(tmp_path):
    where = ("--interface", "lo", "--cluster", "same-name")
    async with node(tmp_path / "a", *where, "--secret", OURS) as a:
        await wait_for(lambda: a.master is not None, a)
        # Being told the address does not help without the secret.
        peer = ("--peer", f"{a.addresses[0]}/p2p/{a.peer_id}")
        async with (
            node(tmp_path / "b", *where, "--secret", OURS) as b,
            node(tmp_path / "c", *where, *peer, "--secret", THEIRS) as c,
            node(tmp_path / "d", *where, *peer) as d,
        ):
            everyone = (a, b, c, d)
            await wait_for(lambda: a.sees(b) and b.sees(a), *everyone)
            await wait_for(lambda: a.master is not None and a.master == b.master, *everyone)
            await wait_for(lambda: c.master == c.peer_id and d.master == d.peer_id, *everyone)
            for outsider in (c, d):
                await wait_for(lambda o=outsider: "has another secret" in o.log, outsider)
                assert "--secret-file" in outsider.log
            await wait_for(lambda: f"{d.peer_id} announces the cluster 'same-name'" in a.log, a)
            await wait_for(lambda: "in a protected cluster that is not this one" in d.log, d)
            clusters = await announced(expected=[each.peer_id for each in everyone])
            assert clusters[a.peer_id] == clusters[b.peer_id] != clusters[c.peer_id]
            assert clusters[d.peer_id] == "same-name"
            for protected in (a, b, c):
                assert ClusterSecret.is_tag(clusters[protected.peer_id])
                assert "same-name" not in clusters[protected.peer_id]
            assert set(a.states()) == set(b.states()) == {a.peer_id, b.peer_id}
            for alone in (c, d):
                assert list(alone.states()) == [alone.peer_id]
                assert not alone.links
                assert alone.log.count("has another secret") == 1, "told once, not at every try"
            assert "is protected" in a.log
            assert "has no secret: anyone on this network can join" in d.log
