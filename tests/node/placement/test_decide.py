"""Every rule of placement, as a table of small clusters."""

from __future__ import annotations

from typing import Any

import pytest

from node.membership.view import ClusterView
from node.placement.decide import AlreadyLoaded, Plan, place, runnable
from node.placement.options import Ordered
from protocols.gossip import ModelRecord, NodeRecord, Quantization
from protocols.placement import Place, Refused
from tests.support.records import instance_record, node_record

GIB = 1 << 30
MODEL = "acme/Tiny"
ANY = Place(MODEL, any_form=True)


def on_disk(
    name: str = MODEL,
    quantization: Quantization = "none",
    gib: float = 4,
    base: str = "tiny",
) -> ModelRecord:
    return ModelRecord(name, base, quantization, int(gib * GIB))


def machine(name: str, *models: ModelRecord, **changes: Any) -> NodeRecord:
    """A machine with 64 GiB, all free."""
    fields: dict[str, Any] = {
        "models": models,
        "memory_total": 64 * GIB,
        "memory_free": 64 * GIB,
        "host": name,
    }
    return node_record(name, *changes.pop("instances", ()), **(fields | changes))


def mac(name: str, *models: ModelRecord, **changes: Any) -> NodeRecord:
    own = {"accelerator": "apple", "engines": ("mlx",), "roles": ("decode",)}
    return machine(name, *models, **(own | changes))


def nvidia(name: str, *models: ModelRecord, **changes: Any) -> NodeRecord:
    return machine(name, *models, **({"accelerator": "nvidia", "engines": ("vllm",)} | changes))


def cpu(name: str, *models: ModelRecord, **changes: Any) -> NodeRecord:
    return machine(name, *models, **({"accelerator": "cpu", "engines": ("mlx", "vllm")} | changes))


def cluster(*nodes: NodeRecord) -> ClusterView:
    view = ClusterView(machine("me", engines=(), roles=()), 0.0)
    for node in nodes:
        view.merge(node, 0.0)
    return view


def loads(decision: object) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return what a plan loads, as (node, model, engine, roles)."""
    assert isinstance(decision, Plan), decision
    return [(each.peer_id, each.model, each.engine, each.roles) for each in decision.loads]


TINY = on_disk()
MLX_FORM = on_disk("mlx-community/Tiny-4bit", "mlx", 1)
FP8_FORM = on_disk("acme/Tiny-FP8", "fp8", 2)

PLANS: dict[str, tuple[list[NodeRecord], Place, list[tuple[str, str, str, tuple[str, ...]]]]] = {
    "the Mac decodes and the NVIDIA box prefills": (
        [mac("mac", TINY), nvidia("box", TINY)],
        ANY,
        [("mac", MODEL, "mlx", ("decode",)), ("box", MODEL, "vllm", ("prefill", "decode"))],
    ),
    "each with its own form of one model": (
        [mac("mac", MLX_FORM), nvidia("box", FP8_FORM)],
        Place("mlx-community/Tiny-4bit"),
        [
            ("mac", MLX_FORM.name, "mlx", ("decode",)),
            ("box", FP8_FORM.name, "vllm", ("prefill", "decode")),
        ],
    ),
    "a Mac alone": ([mac("mac", TINY)], ANY, [("mac", MODEL, "mlx", ("decode",))]),
    "an NVIDIA box alone does both": (
        [nvidia("box", TINY)],
        ANY,
        [("box", MODEL, "vllm", ("prefill", "decode"))],
    ),
    "a CPU decodes with MLX and prefills with vLLM beside it": (
        [cpu("a", TINY)],
        ANY,
        [("a", MODEL, "mlx", ("decode",)), ("a", MODEL, "vllm", ("prefill",))],
    ),
    "a CPU with vLLM alone": (
        [cpu("a", TINY, engines=("vllm",))],
        ANY,
        [("a", MODEL, "vllm", ("prefill", "decode"))],
    ),
    "two CPUs, one engine each": (
        [cpu("a", TINY, engines=("mlx",)), cpu("b", TINY, engines=("vllm",))],
        ANY,
        [("a", MODEL, "mlx", ("decode",)), ("b", MODEL, "vllm", ("prefill", "decode"))],
    ),
    "fewest nodes": (
        [cpu("a", TINY, engines=("mlx",)), cpu("b", TINY), cpu("c", TINY, engines=("vllm",))],
        ANY,
        [("b", MODEL, "mlx", ("decode",)), ("b", MODEL, "vllm", ("prefill",))],
    ),
    "a CPU does not prefill for a Mac, which is faster": (
        [mac("mac", TINY), cpu("a", TINY)],
        ANY,
        [("mac", MODEL, "mlx", ("decode",))],
    ),
    "an mlx-community model prefers Apple silicon": (
        [
            nvidia("a", on_disk("mlx-community/Tiny-bf16")),
            cpu("b", on_disk("mlx-community/Tiny-bf16")),
            mac("z", on_disk("mlx-community/Tiny-bf16"), instances=[instance_record("1", load=9)]),
        ],
        Place("mlx-community/Tiny-bf16", role="decode"),
        [("z", "mlx-community/Tiny-bf16", "mlx", ("decode",))],
    ),
    "an MLX-quantized model goes where MLX runs": (
        [nvidia("box", MLX_FORM), cpu("a", MLX_FORM)],
        Place(MLX_FORM.name),
        [("a", MLX_FORM.name, "mlx", ("decode",))],
    ),
    "an FP8 model goes to the NVIDIA box": (
        [mac("mac", FP8_FORM), cpu("a", FP8_FORM), nvidia("box", FP8_FORM)],
        Place(FP8_FORM.name),
        [("box", FP8_FORM.name, "vllm", ("prefill", "decode"))],
    ),
    "an AWQ model on a CPU goes to vLLM": (
        [cpu("a", on_disk(quantization="awq"))],
        ANY,
        [("a", MODEL, "vllm", ("decode",))],
    ),
    "a node that is kept to prefill is never made to decode": (
        [nvidia("a", TINY, roles=("prefill",)), nvidia("b", TINY)],
        ANY,
        [("b", MODEL, "vllm", ("prefill", "decode"))],
    ),
    "but it prefills": (
        [nvidia("a", TINY, roles=("prefill",)), mac("mac", TINY)],
        ANY,
        [("mac", MODEL, "mlx", ("decode",)), ("a", MODEL, "vllm", ("prefill",))],
    ),
    "a node that is kept to decode is never made to prefill": (
        [nvidia("a", TINY, roles=("decode",)), mac("mac", TINY)],
        ANY,
        [("mac", MODEL, "mlx", ("decode",))],
    ),
    "the least loaded": (
        [
            mac("a", TINY, instances=[instance_record("1", model="x", base_model="x", load=2)]),
            mac("b", TINY, instances=[instance_record("2", model="x", base_model="x", load=1)]),
        ],
        ANY,
        [("b", MODEL, "mlx", ("decode",))],
    ),
    "then the one with fewer instances": (
        [
            mac("a", TINY, instances=[instance_record("1", model="x", base_model="x")]),
            mac("b", TINY),
        ],
        ANY,
        [("b", MODEL, "mlx", ("decode",))],
    ),
    "then the most free memory": (
        [mac("a", TINY, memory_free=20 * GIB), mac("b", TINY, memory_free=40 * GIB)],
        ANY,
        [("b", MODEL, "mlx", ("decode",))],
    ),
    "where the memory is": (
        [mac("a", TINY, memory_free=3 * GIB), mac("b", TINY, memory_free=16 * GIB)],
        ANY,
        [("b", MODEL, "mlx", ("decode",))],
    ),
    "the partner only where its memory is": (
        [cpu("a", TINY, memory_free=16 * GIB)],
        ANY,
        [("a", MODEL, "mlx", ("decode",))],
    ),
    "the very model before another form": (
        [mac("mac", MLX_FORM), cpu("a", TINY, engines=("mlx",))],
        ANY,
        [("a", MODEL, "mlx", ("decode",))],
    ),
    "another form where there is no other": (
        [mac("mac", MLX_FORM)],
        ANY,
        [("mac", MLX_FORM.name, "mlx", ("decode",))],
    ),
    "the name without its owner": (
        [mac("mac", TINY)],
        Place("Tiny"),
        [("mac", MODEL, "mlx", ("decode",))],
    ),
    "the node that is named": (
        [mac("mac", TINY), nvidia("box", TINY)],
        Place(MODEL, node="box"),
        [("box", MODEL, "vllm", ("prefill", "decode"))],
    ),
    "the engine that is named": (
        [mac("mac", TINY), cpu("a", TINY)],
        Place(MODEL, engine="vllm"),
        [("a", MODEL, "vllm", ("decode",))],
    ),
    "the role that is named": (
        [mac("mac", TINY), cpu("a", TINY)],
        Place(MODEL, role="prefill"),
        [("a", MODEL, "vllm", ("prefill",))],
    ),
    "both roles in one": (
        [mac("mac", TINY), cpu("a", TINY)],
        Place(MODEL, role="both"),
        [("a", MODEL, "vllm", ("prefill", "decode"))],
    ),
    "no partner where one is loaded already": (
        [
            mac("mac", TINY),
            nvidia("box", TINY, instances=[instance_record("1", "vllm", roles=("prefill",))]),
        ],
        ANY,
        [("mac", MODEL, "mlx", ("decode",))],
    ),
    "a load that failed is not tried there again": (
        [
            mac("a", TINY, instances=[instance_record("1", model=MODEL, state="failed")]),
            mac("b", TINY, instances=[instance_record("2", model="x", base_model="x", load=5)]),
        ],
        ANY,
        [("b", MODEL, "mlx", ("decode",))],
    ),
    "unless the node is named": (
        [mac("a", TINY, instances=[instance_record("1", model=MODEL, state="failed")])],
        Place(MODEL, node="a"),
        [("a", MODEL, "mlx", ("decode",))],
    ),
    "a second instance where the wish is for another role": (
        [cpu("a", TINY, instances=[instance_record("1", "vllm", roles=("prefill",))])],
        Place(MODEL, engine="mlx"),
        [("a", MODEL, "mlx", ("decode",))],
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_plan(case: str) -> None:
    nodes, wish, expected = PLANS[case]
    assert loads(place(cluster(*nodes), wish)) == expected
    assert loads(place(cluster(*reversed(nodes)), wish)) == expected


REFUSALS: dict[str, tuple[list[NodeRecord], Place, str, list[str]]] = {
    "on no disk": (
        [mac("studio"), nvidia("box", FP8_FORM)],
        Place(MODEL),
        "not_on_disk",
        ["no node has acme/Tiny", "baton models add DIR", "on one of box, studio"],
    ),
    "not on the node that is named": (
        [mac("studio", TINY), nvidia("box")],
        Place(MODEL, node="box"),
        "not_on_disk",
        ["box does not have", "on one of box"],
    ),
    "a cluster without engines": ([], Place(MODEL), "not_on_disk", ["start a node"]),
    "no such node": ([mac("mac", TINY)], Place(MODEL, node="x"), "unknown_node", ["no node x"]),
    "too little memory": (
        [mac("mac", TINY, memory_free=3 * GIB)],
        ANY,
        "memory",
        ["mac has it", "needs 5.4 GiB", "3.0 GiB that are free", "DELETE /v1/instances"],
    ),
    "MLX-quantized, and only vLLM has it": (
        [nvidia("box", MLX_FORM)],
        Place(MLX_FORM.name),
        "incompatible",
        ["box has", "it is MLX-quantized", "vLLM on NVIDIA"],
    ),
    "MLX-quantized, on MLX with CUDA": (
        [nvidia("box", MLX_FORM, engines=("mlx",))],
        Place(MLX_FORM.name),
        "incompatible",
        ["MLX on NVIDIA"],
    ),
    "a GGUF": (
        [mac("mac", on_disk(quantization="gguf")), nvidia("box", on_disk(quantization="gguf"))],
        ANY,
        "incompatible",
        ["mac", "box", "GGUF"],
    ),
    "FP8 on a CPU": ([cpu("a", FP8_FORM)], Place(FP8_FORM.name), "incompatible", ["FP8", "a CPU"]),
    "a node without an engine": (
        [machine("nas", TINY, engines=(), roles=())],
        ANY,
        "incompatible",
        ["nas has no engine"],
    ),
    "kept to prefill": (
        [nvidia("box", TINY, roles=("prefill",))],
        ANY,
        "role",
        ["box has it", "set to do prefill, not to decode"],
    ),
    "MLX does not prefill for others": (
        [cpu("a", TINY, engines=("mlx",))],
        Place(MODEL, role="prefill"),
        "role",
        ["mlx on a does not prefill"],
    ),
    "an engine that the node does not run": (
        [mac("mac", TINY)],
        Place(MODEL, engine="vllm"),
        "incompatible",
        ["mac does not run vllm"],
    ),
    "it has failed to load": (
        [mac("mac", TINY, instances=[instance_record("1", state="failed", reason="no luck")])],
        ANY,
        "failed",
        ["no luck", "POST /v1/instances"],
    ),
    "the nearest reason comes first": (
        [nvidia("box", MLX_FORM), mac("mac", MLX_FORM, memory_free=GIB)],
        Place(MLX_FORM.name),
        "memory",
        ["mac has it", "; box has"],
    ),
    "memory that is about to be used": (
        [
            mac(
                "mac",
                TINY,
                on_disk("acme/Big", gib=20, base="Big"),
                memory_free=24 * GIB,
                instances=[instance_record("1", model="acme/Big", state="loading")],
            )
        ],
        ANY,
        "memory",
        ["may take 0.0 GiB"],
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(case: str) -> None:
    nodes, wish, code, words = REFUSALS[case]
    refused = place(cluster(*nodes), wish)
    assert isinstance(refused, Refused), refused
    assert refused.code == code
    for each in words:
        assert each in refused.text


NOT_MLX: list[Quantization] = [
    "gptq",
    "awq",
    "fp8",
    "nvfp4",
    "mxfp4",
    "compressed-tensors",
    "bitsandbytes",
]


@pytest.mark.parametrize("quantization", [*NOT_MLX, "gguf", "other"])
def test_what_mlx_does_not_read(quantization: Quantization) -> None:
    copy = on_disk(quantization=quantization)
    refused = place(cluster(mac("mac", copy), cpu("a", copy, engines=("mlx",))), ANY)
    assert isinstance(refused, Refused)
    assert refused.code == "incompatible"


@pytest.mark.parametrize("quantization", ["none", *NOT_MLX])
def test_what_vllm_reads_on_nvidia(quantization: Quantization) -> None:
    assert loads(place(cluster(nvidia("box", on_disk(quantization=quantization))), ANY))


def test_members_under_suspicion_and_gone_are_left_out() -> None:
    view = cluster(mac("a", TINY), mac("b", TINY))
    view.connection_lost("a")
    assert loads(place(view, ANY))[0][0] == "b"
    for second in range(20):
        view.tick(float(second))
    refused = place(view, ANY)
    assert isinstance(refused, Refused)
    assert refused.code == "not_on_disk"


def test_a_node_that_an_order_did_not_reach_is_not_tried_again() -> None:
    view = cluster(mac("a", TINY), mac("b", TINY))
    assert loads(place(view, ANY, refused={"a": "no answer"}))[0][0] == "b"
    refused = place(view, ANY, refused={"a": "no answer", "b": "no"})
    assert isinstance(refused, Refused)
    assert refused.code == "unreachable"


def test_what_was_ordered_takes_memory_and_counts_as_load() -> None:
    view = cluster(mac("a", TINY), mac("b", TINY))
    small = Ordered("a", "acme/Other", "mlx", ("decode",), GIB)
    assert loads(place(view, ANY, [small]))[0][0] == "b"
    large = Ordered("b", "acme/Other", "mlx", ("decode",), 60 * GIB)
    assert loads(place(view, ANY, [small, large]))[0][0] == "a"


EXISTING: dict[str, tuple[dict[str, Any], Place, bool]] = {
    "the same model": ({}, Place(MODEL), True),
    "by its name without the owner": ({}, Place("Tiny"), True),
    "one that is loading": ({"state": "loading"}, Place(MODEL), True),
    "one that failed": ({"state": "failed"}, Place(MODEL), False),
    "another form, if any will do": ({"model": "q/Tiny"}, ANY, True),
    "another form, if only this one will": ({"model": "q/Tiny"}, Place(MODEL), False),
    "one for prefill": ({"roles": ("prefill",)}, Place(MODEL), False),
    "the role that is asked for": ({"roles": ("prefill",)}, Place(MODEL, role="prefill"), True),
    "one of both roles": ({"roles": ("prefill",)}, Place(MODEL, role="both"), False),
    "another engine": ({"engine": "mlx"}, Place(MODEL, engine="vllm"), False),
    "on another node": ({}, Place(MODEL, node="b"), False),
}


@pytest.mark.parametrize("case", EXISTING)
def test_what_is_loaded_is_not_loaded_again(case: str) -> None:
    changes, wish, exists = EXISTING[case]
    loaded = cpu("a", TINY, instances=[instance_record("1", **changes)])
    decision = place(cluster(loaded, cpu("b", TINY)), wish)
    assert isinstance(decision, AlreadyLoaded) == exists, decision


def test_what_was_ordered_and_named_is_not_ordered_again() -> None:
    view = cluster(mac("a", TINY), mac("b", TINY))
    ordered = Ordered("a", MODEL, "mlx", ("decode",), GIB, "mlx-1")
    decision = place(view, ANY, [ordered])
    assert isinstance(decision, AlreadyLoaded)
    assert (decision.instance.peer_id, decision.instance.id) == ("a", "mlx-1")


def test_runnable_leaves_out_what_no_node_could_decode() -> None:
    view = cluster(
        mac("mac", TINY, FP8_FORM, memory_free=0),
        nvidia("box", MLX_FORM, roles=("prefill",)),
        cpu("a", TINY, on_disk("acme/File", "gguf")),
    )
    assert [model.name for model in runnable(view)] == [MODEL]
