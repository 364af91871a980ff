"""What the master orders, and what becomes of it when the master dies; whole toy nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from node.http.backend import CreateInstance, RequestFailed
from node.messages import read_message, write_message
from node.transport.streams import ByteStream
from protocols.chat import ChatDelta, ChatFailed
from protocols.framing import FrameReader
from protocols.placement import (
    PROTOCOL_ID,
    LinkOrder,
    LoadOrder,
    Place,
    Placed,
    Refused,
    Reply,
    UnloadOrder,
)
from tests.node.placement.conftest import Clusters
from tests.support import toy_engine
from tests.support.toy_nodes import MODEL, ToyNode, toy_node, until

WANTED = "acme/wanted"
BARE: dict[str, object] = {}
OWNER = {"roles": ("prefill", "decode"), "on_disk": (WANTED,), "loaded": False}
PROMPT = "the quick brown fox jumps over the lazy dog " * 20


async def send(node: ToyNode, peer: ToyNode, message: object) -> Reply:
    """Send a message as one node to another, and return the reply."""
    stream = await node.cluster.open_stream(peer.peer_id, PROTOCOL_ID)
    await write_message(stream, message)
    decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
    reply = await read_message(stream, FrameReader(decoder))
    await stream.close()
    return reply


def code(reply: Reply) -> str:
    assert isinstance(reply, Refused), reply
    return reply.code


async def test_orders_are_carried_out_once_and_only_for_the_master(toys: Clusters):
    async with toys(OWNER, OWNER, OWNER) as nodes:
        master = next(node for node in nodes if node.cluster.is_master)
        owner, other = (node for node in nodes if node is not master)
        term = owner.cluster.term
        order = LoadOrder(term, WANTED, "mlx", ("decode",))
        # Of another node than the master, or of a term that is over.
        assert code(await send(other, owner, order)) == "stale_term"
        old = msgspec.structs.replace(order, term=term - 1)
        assert code(await send(master, owner, old)) == "stale_term"
        assert list(owner.instances) == []
        first = await send(master, owner, order)
        second = await send(master, owner, order)
        assert isinstance(first, Placed)
        assert isinstance(second, Placed)
        assert (first.created, second.created) == (True, False)
        assert first.instances == second.instances
        assert len(list(owner.instances)) == 1
        for wrong, expected in (
            (LoadOrder(term, "../" + WANTED, "mlx", ("decode",)), "not_on_disk"),
            (LoadOrder(term, str(owner.store.root / WANTED), "mlx", ()), "not_on_disk"),
            (LoadOrder(term, "", "mlx", ("decode",)), "not_on_disk"),
            (UnloadOrder(term, "mlx-000"), "unknown_instance"),
            (LinkOrder(term, "a", "b", linked=True), "unknown_instance"),
        ):
            assert code(await send(master, owner, wrong)) == expected
        # Nor does a node that is no master decide.
        assert code(await send(master, other, Place(WANTED))) == "not_master"


async def test_a_node_does_nothing_that_its_user_does_not_let_it(toys: Clusters):
    kept = {"roles": ("prefill",), "on_disk": (WANTED,), "loaded": False}
    async with toys(kept) as (node,):
        order = LoadOrder(node.cluster.term, WANTED, "mlx", ("decode",))
        reply = await node.orders.carry_out(order, node.peer_id)
        assert code(reply) == "role"
        assert list(node.instances) == []


@pytest.mark.parametrize("when", ["before it answers", "while the model is loaded"])
async def test_the_death_of_the_master_does_not_fail_a_request(tmp_path: Any, when: str):
    """The master comes first and is master for that; it is neither the asker nor the loader."""
    ready, leave = trio.Event(), trio.Event()
    asked = trio.Event()
    masters: list[ToyNode] = []

    async def never_answer(stream: ByteStream) -> None:
        asked.set()
        await trio.sleep_forever()

    async def run_master() -> None:
        async with toy_node(tmp_path / "master", ()) as master:
            await master.wait_for_master()
            if when == "before it answers":
                master.cluster.set_handler(PROTOCOL_ID, never_answer)
            masters.append(master)
            ready.set()
            await leave.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_master)
        await ready.wait()
        async with (
            toy_node(
                tmp_path / "owner", ("decode",), "--load-s", "3", on_disk=(WANTED,), loaded=False
            ) as owner,
            toy_node(tmp_path / "asker", ()) as asker,
        ):
            await until(
                lambda: all(
                    node.cluster.master == masters[0].cluster.master for node in (owner, asker)
                ),
                30,
            )
            await until(lambda: any(not each.loaded for each in asker.backend.models()), 30)

            async def end_master() -> None:
                if when == "before it answers":
                    await asked.wait()
                else:
                    await until(lambda: len(list(owner.instances)) == 1)
                leave.set()

            nursery.start_soon(end_master)
            answer = await asker.ask(PROMPT, model=WANTED)
            assert answer.text == toy_engine.answer_to(toy_engine.tokenize(PROMPT))
            assert [each.spec.model for each in owner.instances] == [WANTED]
            nursery.cancel_scope.cancel()


async def test_instances_are_created_and_deleted_from_any_node(toys: Clusters):
    slow = {"roles": ("prefill", "decode"), "on_disk": (WANTED,), "engine": ("--step-s", "0.3")}
    async with toys(BARE, slow, BARE) as (bare, owner, other):
        made = await bare.backend.create_instance(CreateInstance(WANTED, owner.peer_id, "mlx"))
        assert made.new
        assert (made.instances[0].node, made.instances[0].model) == (owner.peer_id, WANTED)
        again = await other.backend.create_instance(CreateInstance(WANTED))
        assert not again.new
        assert again.instances[0].id == made.instances[0].id
        await until(lambda: all(each.state == "ready" for each in other.backend.instances()))

        failures: list[ChatFailed] = []
        running = trio.Event()

        async def ask() -> None:
            async with bare.backend.open_chat(bare.request(PROMPT)) as events:
                async for event in events:
                    if isinstance(event, ChatDelta):
                        running.set()
                    if isinstance(event, ChatFailed):
                        failures.append(event)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await running.wait()
            (victim,) = [each for each in other.backend.instances() if each.model == MODEL]
            await other.backend.delete_instance(victim.id)
        assert [failure.status for failure in failures] == [503]
        assert "was removed" in failures[0].message
        assert [each.spec.model for each in owner.instances] == [WANTED]
        # No request is sent to it any more, wherever it arrives.
        await until(lambda: all(len(node.backend.instances()) == 1 for node in (bare, other)))
        refused = await bare.ask(PROMPT)
        assert refused.failed is not None
        assert refused.failed.status == 404
        for change in (
            bare.backend.delete_instance(victim.id),
            bare.backend.create_instance(CreateInstance(WANTED, "nobody")),
            bare.backend.create_instance(CreateInstance("nothing")),
        ):
            with pytest.raises(RequestFailed) as failed:
                await change
            assert failed.value.failure.status == 404


async def test_links_decide_who_prefills(toys: Clusters):
    prefill = {"roles": ("prefill",)}
    decode = {"roles": ("decode",), "engine": ("--step-s", "0.02")}
    async with toys(prefill, prefill, decode) as nodes:
        linked = nodes[1]
        backend, other = nodes[0].backend, nodes[2].backend
        decoder = nodes[2].instance.id
        for index in (1, 0):
            made = await backend.create_link(nodes[index].instance.id, decoder)
            assert made.ready
            assert (await nodes[2].ask(PROMPT, prefill="remote")).finished is not None
            if index == 1:
                answer = await nodes[2].ask(PROMPT, prefill="remote")
                assert answer.finished is not None
                assert answer.finished.report.prefill_node == linked.peer_id
        await backend.delete_link(nodes[0].instance.id, decoder)
        assert [each.prefill for each in other.links()] == [linked.instance.id]
        for wrong, status in (
            ((decoder, linked.instance.id), 409),
            ((decoder, decoder), 409),
            (("nobody", decoder), 404),
            ((linked.instance.id, "nobody"), 404),
        ):
            with pytest.raises(RequestFailed) as failed:
                await other.create_link(*wrong)
            assert failed.value.failure.status == status
        with pytest.raises(RequestFailed):
            await other.delete_link(nodes[0].instance.id, decoder)
        # With the instance goes its link, and any other may prefill again.
        await backend.delete_instance(linked.instance.id)
        await until(lambda: not backend.links() and not other.links())
        answer = await nodes[2].ask(PROMPT, prefill="remote")
        assert answer.finished is not None
        assert answer.finished.report.prefill_node == nodes[0].peer_id
