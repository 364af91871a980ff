"""Models that are asked for and loaded nowhere, in clusters of whole toy nodes."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from protocols.chat import ChatEvent, ChatFailed, ChatLoading, ChatRequest
from tests.node.placement.conftest import Clusters
from tests.support import toy_engine
from tests.support.toy_nodes import MODEL, ToyNode, make_checkpoint, until

WANTED = "acme/wanted"
BARE: dict[str, object] = {}
DECODE = {"roles": ("decode",), "on_disk": (WANTED,), "loaded": False}
SLOW = {**DECODE, "engine": ("--load-s", "2")}
QUESTION = "what is asked of the model"


def expected(prompt: str) -> str:
    return toy_engine.answer_to(toy_engine.tokenize(prompt))


def loaded(*nodes: ToyNode) -> list[str]:
    """Return the models of every instance of the nodes."""
    return [instance.spec.model for node in nodes for instance in node.instances]


async def events_of(node: ToyNode, request: ChatRequest) -> list[ChatEvent]:
    async with node.backend.open_chat(request) as events:
        return [event async for event in events]


async def test_a_model_is_loaded_where_it_is_on_disk_and_the_request_answered(toys: Clusters):
    async with toys(BARE, SLOW, BARE) as (bare, owner, other):
        listed = {info.id: info for info in bare.backend.models()}
        assert not listed[WANTED].loaded
        request = bare.request(QUESTION, model=WANTED)
        events = await events_of(bare, request)
        loading = [each for each in events if isinstance(each, ChatLoading)]
        assert loading[0].model == WANTED
        assert loading[-1].fraction == 0.5
        assert loaded(owner) == [WANTED]
        again = await other.ask(QUESTION, model=WANTED)
        assert again.text == expected(QUESTION)
        assert loaded(owner) == [WANTED]
        assert {info.id: info for info in other.backend.models()}[WANTED].ready


async def test_many_requests_at_once_load_it_once(toys: Clusters):
    async with toys(SLOW, SLOW, BARE) as nodes:
        answers: list[str] = []

        async def ask(node: ToyNode, model: str) -> None:
            answers.append((await node.ask(QUESTION, model=model)).text)

        async with trio.open_nursery() as nursery:
            for node in nodes:
                for model in (WANTED, "wanted"):
                    nursery.start_soon(ask, node, model)
        assert answers == [expected(QUESTION)] * 6
        assert loaded(*nodes) == [WANTED]


async def test_a_client_that_leaves_does_not_cancel_the_load(toys: Clusters):
    async with toys(BARE, SLOW) as (bare, owner):
        async with bare.backend.open_chat(bare.request(QUESTION, model=WANTED)) as events:
            async for event in events:
                assert isinstance(event, ChatLoading)
                break
        assert owner.instance.state == "loading"
        await until(lambda: owner.instance.state == "ready")
        assert (await bare.ask(QUESTION, model=WANTED)).text == expected(QUESTION)


async def test_a_node_that_cannot_load_it_is_followed_by_one_that_can(toys: Clusters):
    broken = {**DECODE, "engine": ("--fail-load",)}
    # The busier of the two is second choice.
    async with toys(broken, {**DECODE, "loaded": True}, BARE) as (first, second, bare):
        answer = await bare.ask(QUESTION, model=WANTED)
        assert answer.text == expected(QUESTION)
        assert [instance.state for instance in first.instances] == ["failed"]
        assert loaded(second) == [MODEL, WANTED]


async def test_what_cannot_be_loaded_is_refused_with_the_reason(toys: Clusters, tmp_path: Path):
    prefill = {"roles": ("prefill",), "on_disk": ("for-prefill",), "loaded": False}
    broken = {"roles": ("decode",), "on_disk": ("broken",), "loaded": False}
    async with toys(prefill, {**broken, "engine": ("--fail-load",)}, BARE) as nodes:
        bare = nodes[2]

        async def refused(model: str) -> ChatFailed:
            answer = await bare.ask(QUESTION, model=model)
            assert answer.failed is not None
            return answer.failed

        unknown = await refused("no-such-model")
        assert (unknown.status, unknown.code) == (404, "model_not_found")
        assert "baton models add" in unknown.message
        assert "broken" in unknown.message
        role = await refused("for-prefill")
        assert (role.status, role.code) == (404, "role")
        assert "set to do prefill, not to decode" in role.message
        failed = await refused("broken")
        assert failed.status == 503
        assert "cannot load broken" in failed.message
        # A sparse file: it takes no room on this disk.
        make_checkpoint(nodes[0].store.root / "huge")
        os.truncate(nodes[0].store.root / "huge" / "model.safetensors", 1 << 42)
        make_checkpoint(nodes[1].store.root / "huge")
        os.truncate(nodes[1].store.root / "huge" / "model.safetensors", 1 << 42)
        for node in nodes[:2]:
            node.cluster.update_models(node.store.inventory().models)
        await until(lambda: "huge" in {info.id for info in bare.backend.models()})
        huge = await refused("huge")
        assert huge.status == 503
        assert "needs" in huge.message
        assert "GiB" in huge.message
