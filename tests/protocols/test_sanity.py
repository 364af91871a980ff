"""Values that the types allow and no correct node says."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import Malformed
from protocols.gossip import Heartbeat, Hello, InterfaceRecord, NodeRecord
from protocols.sanity import MAX_INT, cleaned_text, sane
from tests.support.records import instance_record, node_record

GOOD = node_record("a", instance_record("i"), addresses=("/ip4/10.0.0.1/tcp/1",))


def test_right_message_is_returned_as_it_is():
    assert sane(GOOD) is GOOD
    assert sane(Heartbeat("a", 1)) == Heartbeat("a", 1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"memory_total": -1}, "memory_total is -1"),
        ({"memory_free": 1 << 62}, "memory_free is"),
        ({"incarnation": 1 << 62}, "incarnation is"),
        ({"sequence": -5}, "sequence is -5"),
        ({"term": MAX_INT + 1}, "term is"),
        ({"addresses": tuple(map(str, range(100_000)))}, "addresses has 100000 items"),
        ({"host": "x" * 5000}, "host has 5000 characters"),
        ({"instances": (instance_record("i", load=-1),)}, "load is -1"),
        ({"instances": (instance_record("i", prefill_tokens_per_s=math.nan),)}, "per_s is nan"),
        ({"instances": (instance_record("i", prefill_tokens_per_s=math.inf),)}, "per_s is inf"),
        ({"interfaces": (InterfaceRecord("e", "wifi", (), speed_mbps=-1),)}, "speed_mbps is -1"),
    ],
)
def test_absurd_values_are_refused_wherever_they_are(change, complaint):
    record = msgspec.structs.replace(GOOD, **change)
    with pytest.raises(Malformed, match=complaint):
        sane(record)
    with pytest.raises(Malformed, match=complaint):
        sane(Hello(record))


@pytest.mark.parametrize(
    "evil",
    [
        "\x1b[2J\x1b[H",
        "a\nINFO forged line",
        "\x07",
        "\u202egpj.exe",
        "a\u2028b",
        "\x9b31m",
        "\x7f",
    ],
)
def test_text_does_nothing_to_a_terminal_but_be_shown(evil):
    record = sane(node_record("a", instance_record("i", model=evil, reason=evil), host=evil))
    for text in (record.host, record.instances[0].model, record.instances[0].reason):
        assert text.isprintable() or "\ufffd" in text
        assert not set(text) & set("\x1b\x07\n\x7f\x9b\u202e\u2028")
        assert len(text) == len(evil)
    assert record.instances[0].fingerprint == "f"


def test_names_in_any_script_stay_as_they_are():
    for name in ("Küche", "メインPC", "café 🖥", "Mac mini (2)", "a\u00a0b"):
        assert cleaned_text(name) == name


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        NodeRecord,
        peer_id=st.text(),
        incarnation=st.integers(),
        sequence=st.integers(),
        cluster=st.text(),
        host=st.text(),
        addresses=st.lists(st.text(), max_size=5).map(tuple),
        interfaces=st.just(()),
        roles=st.just(()),
        engines=st.just(()),
        memory_total=st.integers(),
        memory_free=st.integers(),
        instances=st.just(()),
    )
)
def test_whatever_is_said_is_refused_or_harmless(record):
    try:
        cleaned = sane(record)
    except Malformed:
        return
    assert 0 <= cleaned.incarnation <= MAX_INT
    assert not any(ord(c) < 32 for c in cleaned.host + cleaned.cluster + "".join(cleaned.addresses))
    assert sane(cleaned) is cleaned
