from ipaddress import ip_interface

import msgspec
import pytest

from node.interfaces import Interface
from node.membership.view import ClusterView
from node.status import render_status
from tests.support.records import instance_record, node_record

ETH = Interface("eth0", "ethernet", (ip_interface("10.0.0.5/24"),), 1000)


def document(view, master=None):
    return msgspec.json.decode(
        msgspec.json.encode(render_status(view, master, (), lambda link: None))
    )


def test_document_is_the_contract():
    instance = instance_record("i", load=2)
    addresses = ("/ip4/10.0.0.5/tcp/4001",)
    own = node_record("me", instance, interfaces=(ETH.record(),), addresses=addresses)
    view = ClusterView(own, 0.0)
    view.merge(node_record("b"), 0.0)
    view.connection_lost("b")
    status = document(view, ("b", 4 << 31 | 1))
    assert status["cluster"] == "test"
    assert status["self"] == "me"
    assert status["master"] == {"peer_id": "b", "term": 4 << 31 | 1, "round": 4}
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


def test_without_a_master_it_is_null():
    assert document(ClusterView(node_record("me"), 0.0))["master"] is None


@pytest.mark.parametrize(
    ("roles", "role"), [(("prefill",), "prefill"), (("decode",), "decode"), ((), "")]
)
def test_role_of_an_instance_is_one_word(roles, role):
    view = ClusterView(node_record("me", instance_record("i", roles=roles)), 0.0)
    assert document(view)["nodes"][0]["instances"][0]["role"] == role
