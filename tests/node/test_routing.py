import math

import pytest

from node.membership.view import ClusterView
from node.routing import (
    DecodeChoice,
    LinkState,
    PrefillPolicy,
    Refusal,
    choose_decode,
    rank_prefill,
)
from protocols.gossip import Leave
from tests.support.records import instance_record, node_record

MODEL = "acme/Tiny"
FAST = LinkState("ethernet", 1e9)


def cluster(**instances):
    """Make the view of node `me` in which each named node has the given instances."""
    view = ClusterView(node_record("me", *instances.pop("me", ())), 0.0)
    for peer, records in instances.items():
        view.merge(node_record(peer, *records), 0.0)
    return view


def decode(**changes):
    return DecodeChoice("me", instance_record("d", "mlx", **changes))


DECODE_CASES = {
    "exact model before another form": (
        {"a": [instance_record("1", model="q/Tiny")], "b": [instance_record("2", load=9)]},
        ("b", "2"),
    ),
    "another form when there is none exact": (
        {"a": [instance_record("1", model="q/Tiny")]},
        ("a", "1"),
    ),
    "mlx before vllm, whatever the load": (
        {"me": [instance_record("1", "vllm")], "a": [instance_record("2", "mlx", load=3)]},
        ("a", "2"),
    ),
    "least loaded": (
        {"me": [instance_record("1", load=2)], "a": [instance_record("2", load=1)]},
        ("a", "2"),
    ),
    "another form that is ready before the exact model that is not": (
        {
            "a": [instance_record("1", state="restarting")],
            "b": [instance_record("2", model="q/Tiny")],
        },
        ("b", "2"),
    ),
    "the exact model before another form, whatever the engine and the load": (
        {
            "a": [instance_record("1", "vllm", load=9)],
            "b": [instance_record("2", "mlx", model="q/Tiny")],
        },
        ("a", "1"),
    ),
    "own node when equal": (
        {"a": [instance_record("1")], "me": [instance_record("2")]},
        ("me", "2"),
    ),
    "only those that decode and are ready": (
        {
            "a": [instance_record("1", roles=("prefill",)), instance_record("2", state="loading")],
            "b": [instance_record("3", "vllm", load=5)],
        },
        ("b", "3"),
    ),
}


@pytest.mark.parametrize("case", DECODE_CASES)
def test_decode_choice(case):
    instances, expected = DECODE_CASES[case]
    choice = choose_decode(cluster(**instances), MODEL, "me")
    assert isinstance(choice, DecodeChoice)
    assert (choice.peer_id, choice.instance.id) == expected


REFUSALS = {
    "unknown_model": (
        {"a": [instance_record("1", model="x/Other", base_model="Other")]},
        "no node",
    ),
    "no_decode": ({"a": [instance_record("1", roles=("prefill",))]}, "for prefill only"),
    "failed": ({"a": [instance_record("1", state="failed", reason="no memory")]}, "no memory"),
    "restarting": (
        {"a": [instance_record("1", state="failed"), instance_record("2", state="restarting")]},
        "restarting",
    ),
    "loading": (
        {"a": [instance_record("1", state="restarting"), instance_record("2", state="loading")]},
        "loading",
    ),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_decode_refusal_says_why(code):
    instances, words = REFUSALS[code]
    refusal = choose_decode(cluster(**instances), MODEL, "me")
    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    assert words in refusal.reason


def test_nodes_that_have_failed_at_the_request_are_left_out():
    view = cluster(a=[instance_record("1")], b=[instance_record("2", load=3)])
    choice = choose_decode(view, MODEL, "me", frozenset({"a"}))
    assert isinstance(choice, DecodeChoice)
    assert choice.peer_id == "b"
    refusal = choose_decode(view, MODEL, "me", frozenset({"a", "b"}))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "excluded"


def suspect(view):
    view.connection_lost("a")


def gone(view):
    for second in range(12):
        view.tick(float(second))


def left(view):
    view.leave(Leave("a", incarnation=1))


def deleted(view):
    view.merge(node_record("a", sequence=2), 0.0)


def left_and_an_old_record_comes(view):
    left(view)
    view.merge(node_record("a", instance_record("1"), sequence=9), 0.0)


def deleted_and_an_old_record_comes(view):
    deleted(view)
    view.merge(node_record("a", instance_record("1"), sequence=1), 0.0)


def restarted_and_an_old_record_comes(view):
    view.merge(node_record("a", incarnation=2, sequence=0), 0.0)
    view.merge(node_record("a", instance_record("1"), incarnation=1, sequence=99), 0.0)


def gone_and_its_last_record_comes_again(view):
    gone(view)
    view.merge(node_record("a", instance_record("1")), 13.0)


@pytest.mark.parametrize(
    "event",
    [
        suspect,
        gone,
        left,
        deleted,
        left_and_an_old_record_comes,
        deleted_and_an_old_record_comes,
        restarted_and_an_old_record_comes,
        gone_and_its_last_record_comes_again,
    ],
)
def test_what_is_not_there_any_more_is_neither_asked_to_decode_nor_to_prefill(event):
    view = cluster(a=[instance_record("1", prefill_tokens_per_s=1e6)])
    assert isinstance(choose_decode(view, MODEL, "me"), DecodeChoice)
    assert ranked(view).candidates
    event(view)
    assert isinstance(choose_decode(view, MODEL, "me"), Refusal)
    assert ranked(view).candidates == ()


def ranked(view, tokens=1000, policy=None, links=None, choice=None):
    return rank_prefill(
        view,
        choice or decode(prefill_tokens_per_s=50.0),
        tokens,
        policy or PrefillPolicy(),
        links if links is not None else {"a": FAST, "b": FAST},
    )


def test_candidates_come_by_expected_time():
    view = cluster(
        a=[instance_record("slow", "vllm", prefill_tokens_per_s=500.0)],
        b=[instance_record("quick", "vllm", prefill_tokens_per_s=2000.0)],
        me=[instance_record("own", "vllm", prefill_tokens_per_s=1000.0), decode().instance],
    )
    ranking = ranked(view)
    assert [each.instance.id for each in ranking.candidates] == ["quick", "own", "slow"]
    assert [each.expected_s for each in ranking.candidates] == pytest.approx([0.5, 1.0, 2.0])
    assert ranking.local_s == pytest.approx(20.0)
    assert ranking.reason == ""


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        # 1,000 tokens of 1 MB at 100 MB/s are 10 s on the wire, of which 1 s is hidden.
        (True, 10.0),
        (False, 11.0),
    ],
)
def test_transfer_counts_as_far_as_it_is_not_hidden(overlap, expected):
    view = cluster(
        a=[instance_record("p", prefill_tokens_per_s=1000.0, kv_bytes_per_token=1_000_000)]
    )
    ranking = ranked(
        view, policy=PrefillPolicy(overlap=overlap), links={"a": LinkState("ethernet", 100e6)}
    )
    assert ranking.candidates[0].expected_s == pytest.approx(expected)


def test_queue_counts():
    view = cluster(
        a=[instance_record("busy", prefill_tokens_per_s=1000.0, load=3)],
        b=[instance_record("idle", prefill_tokens_per_s=400.0)],
    )
    assert [each.instance.id for each in ranked(view).candidates] == ["idle", "busy"]


def test_unmeasured_link_is_taken_for_its_class():
    view = cluster(
        a=[instance_record("p", prefill_tokens_per_s=1e6, kv_bytes_per_token=100_000)],
    )
    wifi = ranked(view, links={"a": LinkState("wifi")}).candidates[0].expected_s
    wire = ranked(view, links={"a": LinkState("ethernet")}).candidates[0].expected_s
    assert wifi > wire


LOCAL_CASES = {
    "nothing there": ({}, {}, "no prefill instance of acme/Tiny is ready"),
    "decode only": (
        {"a": [instance_record("p", roles=("decode",))]},
        {},
        "no prefill instance of acme/Tiny is ready",
    ),
    "another model": (
        {"a": [instance_record("p", base_model="Other")]},
        {},
        "no prefill instance of acme/Tiny is ready",
    ),
    "still loading": ({"a": [instance_record("p", state="loading")]}, {}, "is loading"),
    "another fingerprint": ({"a": [instance_record("p", fingerprint="g")]}, {}, "does not fit"),
    "no connection": ({"a": [instance_record("p")]}, {"links": {}}, "not connected"),
    "short": (
        {"a": [instance_record("p", prefill_tokens_per_s=1e6)]},
        {"tokens": 40},
        "prompt of 40 tokens is under --remote-prefill-min-tokens 256",
    ),
    "switched off": (
        {"a": [instance_record("p", prefill_tokens_per_s=1e6)]},
        {"policy": PrefillPolicy(mode="never")},
        "switched off",
    ),
    "within the margin": (
        {"a": [instance_record("p", prefill_tokens_per_s=52.0)]},
        {},
        "local prefill is expected to be as fast: 20.00 s against 19.23 s by mlx on host-a",
    ),
    "rate unknown": (
        {"a": [instance_record("p", prefill_tokens_per_s=0.0)]},
        {},
        "is not known yet",
    ),
}


@pytest.mark.parametrize("case", LOCAL_CASES)
def test_local_prefill_says_why(case):
    instances, arguments, words = LOCAL_CASES[case]
    ranking = ranked(cluster(**instances), **arguments)
    assert ranking.candidates == ()
    assert words in ranking.reason


LINKED_CASES = {
    "none: any may prefill": ((), ["quick", "slow"]),
    "the linked one, though it is not the best": (("slow",), ["slow"]),
    "both": (("slow", "quick"), ["quick", "slow"]),
    "one that is not there": (("lost",), []),
    "one that is there beside one that is not": (("lost", "slow"), ["slow"]),
}


@pytest.mark.parametrize("case", LINKED_CASES)
def test_links_of_the_decode_instance_name_who_may_prefill(case):
    links, expected = LINKED_CASES[case]
    view = cluster(
        a=[instance_record("slow", "vllm", prefill_tokens_per_s=500.0)],
        b=[instance_record("quick", "vllm", prefill_tokens_per_s=2000.0)],
    )
    ranking = ranked(view, choice=decode(prefill_tokens_per_s=50.0, links=links))
    assert [each.instance.id for each in ranking.candidates] == expected
    if not expected:
        assert "that it is linked to is ready" in ranking.reason


def test_decode_instance_without_a_fingerprint_gets_nothing():
    view = cluster(a=[instance_record("p", fingerprint="")])
    ranking = ranked(view, choice=decode(fingerprint="", prefill_tokens_per_s=1.0))
    assert ranking.candidates == ()


def test_always_goes_remote_even_when_slower_but_not_under_the_floor():
    view = cluster(a=[instance_record("p", prefill_tokens_per_s=1.0)])
    policy = PrefillPolicy(mode="always")
    assert len(ranked(view, policy=policy).candidates) == 1
    assert ranked(view, tokens=10, policy=policy).candidates == ()


def test_unknown_local_rate_prefers_a_known_remote_one():
    view = cluster(a=[instance_record("p", prefill_tokens_per_s=5.0)])
    ranking = ranked(view, choice=decode(prefill_tokens_per_s=0.0))
    assert ranking.local_s == math.inf
    assert len(ranking.candidates) == 1


def test_faster_remote_is_never_worse_placed():
    # A property: raising a candidate's rate never moves it back.
    for rate in (60.0, 100.0, 400.0, 1600.0):
        view = cluster(
            a=[instance_record("x", prefill_tokens_per_s=rate)],
            b=[instance_record("y", prefill_tokens_per_s=300.0)],
        )
        order = [each.instance.id for each in ranked(view).candidates]
        assert order.index("x") == (0 if rate > 300.0 else 1)
