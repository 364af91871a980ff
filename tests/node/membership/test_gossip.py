import msgspec
import pytest

from node.membership.gossip import decode_message
from protocols.errors import Malformed
from protocols.gossip import Heartbeat, Leave
from tests.support.records import instance_record, node_record

encode = msgspec.msgpack.encode


@pytest.mark.parametrize(
    "message",
    [node_record("a", instance_record("i")), Leave("a", 3), Heartbeat("a", 1, 2)],
)
def test_message_of_its_origin_is_read(message):
    assert decode_message(encode(message), "a", "test") == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe junk",
        encode({"type": "record"}),
        encode({"type": "nonsense", "peer_id": "a"}),
        encode({"type": "heartbeat", "peer_id": "a", "term": "one", "followers": 1}),
        encode([1, 2, 3]),
        b"\x81\xa4type\xa2\xff\xff",
        encode({"type": "leave", "peer_id": "a", "incarnation": 1, "x": "y" * 70_000}),
    ],
)
def test_bad_bytes_are_malformed(data):
    with pytest.raises(Malformed):
        decode_message(data, "a", "test")


@pytest.mark.parametrize("message", [node_record("b"), Leave("b", 1), Heartbeat("b", 9, 9)])
def test_nobody_speaks_for_another(message):
    with pytest.raises(Malformed, match="speaks for b"):
        decode_message(encode(message), "a", "test")


def test_record_of_another_cluster_is_refused():
    with pytest.raises(Malformed, match="elsewhere"):
        decode_message(encode(node_record("a", cluster="elsewhere")), "a", "test")


def test_message_of_a_newer_version_with_more_fields_is_read():
    fields = msgspec.to_builtins(Leave("a", 1)) | {"mood": "good"}
    assert decode_message(encode(fields), "a", "test") == Leave("a", 1)
