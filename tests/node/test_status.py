from ipaddress import ip_interface

import msgspec
import pytest

from node.interfaces import Interface
from node.membership.view import GONE_AFTER_S, ClusterView
from node.status import ClusterStatus, render_status
from protocols.gossip import Leave
from protocols.status import LinkStatus
from tests.support.records import instance_record, node_record

ETH = Interface("eth0", "ethernet", (ip_interface("10.0.0.5/24"),), 1000)


def document(view, master=None, links=None, now=0.0):
    return msgspec.json.decode(msgspec.json.encode(render_status(view, master, links or {}, now)))


def link(source, to):
    return LinkStatus(source, to, "ethernet", "/ip4/10.0.0.6/tcp/1", 110.5, 0.25, True, "eth0")


def test_document_is_the_contract():
    instance = instance_record("i", load=2)
    addresses = ("/ip4/10.0.0.5/tcp/4001",)
    own = node_record("me", instance, interfaces=(ETH.record(),), addresses=addresses)
    view = ClusterView(own, 0.0)
    view.merge(node_record("b"), 0.0)
    view.connection_lost("b")
    term = (3 << 31) + 7
    status = document(view, ("b", term), {"me": (link("me", "b"),)})
    assert status["cluster"] == "test"
    assert status["self"] == "me"
    assert status["master"] == {"peer_id": "b", "term": term, "round": 3}
    assert [(each["peer_id"], each["state"]) for each in status["nodes"]] == [
        ("b", "suspect"),
        ("me", "alive"),
    ]
    node = status["nodes"][1]
    assert node["memory"] == {"total": 100, "free": 50}
    assert node["addresses"] == ["/ip4/10.0.0.5/tcp/4001/p2p/me"]
    assert node["interfaces"] == [
        {"name": "eth0", "class": "ethernet", "addresses": ["10.0.0.5"], "speed_mbps": 1000}
    ]
    assert node["instances"][0] | {"id": "i", "role": "both", "load": 2} == node["instances"][0]
    assert status["links"] == [
        {
            "from": "me",
            "to": "b",
            "class": "ethernet",
            "address": "/ip4/10.0.0.6/tcp/1",
            "mb_per_s": 110.5,
            "rtt_ms": 0.25,
            "in_use": True,
            "interface": "eth0",
        }
    ]
    msgspec.convert(status, ClusterStatus, strict=True)


def test_without_a_master_it_is_null():
    assert document(ClusterView(node_record("me"), 0.0))["master"] is None


@pytest.mark.parametrize(
    ("roles", "role"), [(("prefill",), "prefill"), (("decode",), "decode"), ((), "")]
)
def test_role_of_an_instance_is_one_word(roles, role):
    view = ClusterView(node_record("me", instance_record("i", roles=roles)), 0.0)
    assert document(view)["nodes"][0]["instances"][0]["role"] == role


@pytest.mark.parametrize("how", ["silent", "left", "disconnected"])
def test_instances_of_a_node_that_is_not_there_do_not_look_available(how):
    view = ClusterView(node_record("me", instance_record("mine")), 0.0)
    view.merge(node_record("you", instance_record("yours")), 0.0)
    if how == "left":
        view.leave(Leave("you", 1))
    elif how == "disconnected":
        view.connection_lost("you")
    for second in range(1, int(GONE_AFTER_S) + 1):
        view.tick(second)
    states = {
        instance["id"]: instance["state"]
        for node in document(view)["nodes"]
        for instance in node["instances"]
    }
    assert states == {"mine": "ready", "yours": "unreachable"}


def test_how_long_a_node_has_been_silent():
    view = ClusterView(node_record("me"), 0.0)
    view.merge(node_record("you"), 2.0)
    seen = {each["peer_id"]: each["last_seen_s"] for each in document(view, now=5.26)["nodes"]}
    assert seen == {"me": 0, "you": 3.3}


def test_nodes_that_told_of_no_links_are_named_unless_they_are_not_there():
    view = ClusterView(node_record("me"), 0.0)
    for peer_id in ("silent", "told", "lost"):
        view.merge(node_record(peer_id), 0.0)
    view.connection_lost("lost")
    status = document(view, links={"told": (link("told", "me"),), "me": ()})
    assert status["links_missing_from"] == ["silent"]
    assert [each["from"] for each in status["links"]] == ["told"]
