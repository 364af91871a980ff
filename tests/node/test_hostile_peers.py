"""Peers that do harm are dropped, and what the others do goes on meanwhile.

In each test a victim has two neighbours: one that attacks it, and one that asks it for an echo and
gossips all the while.
"""

import os
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
import trio
from libp2p.network.config import ConnectionConfig
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.utils import encode_varint_prefixed
from loguru import logger

from node import host as host_module
from node.libp2p_seam import negotiate
from node.membership import pubsub as pubsub_module
from node.offences import LIMIT
from node.prefill.server import PrefillService
from node.routes import Route, parse_address
from node.transport import inbound, negotiation
from node.transport.conduct import Offence
from node.transport.errors import TransportError
from protocols.errors import Malformed
from protocols.gossip import Heartbeat, Leave
from protocols.kv_prefill.messages import PROTOCOL_ID as PREFILL
from tests.node.test_host import ECHO, ask, echo, gossiping, running, until
from tests.support.records import node_record

TOPIC = "baton/1/test"
STRICT = "/test/strict/1"
ENOUGH = 6
"""Malformed messages that lead to a ban, if they come quickly."""


async def connect(a, b):
    assert await a.dial(b.peer_id, Route(b.addresses[0], "loopback", "lo"))
    await until(lambda: a.best_link(b.peer_id) and b.best_link(a.peer_id))


class Scene:
    """The three, the gossip of each, and what the victim has heard of the bystander."""

    def __init__(self, victim, attacker, bystander):
        self.victim, self.attacker, self.bystander = victim, attacker, bystander
        self.heard, self.log = [], []
        self.gossip = {}

    @property
    def link(self):
        return self.attacker.best_link(self.victim.peer_id)

    @property
    def points_of(self):
        accounts = self.victim.warden._ledger._accounts
        return {peer_id: account.points for peer_id, account in accounts.items()}

    async def until_banned(self, peer=None):
        peer = peer or self.attacker
        with trio.fail_after(15):
            await until(lambda: self.victim.warden.refuses(peer.peer_id), 15)
            await until(lambda: self.victim.best_link(peer.peer_id) is None)
        (line,) = (each for each in self.log if "is disconnected, and refused" in each)
        assert peer.peer_id in line
        assert "60 s" in line

    async def publish_raw(self, *messages):
        """Send gossip as the attacker, past its own checks."""
        rpc = rpc_pb2.RPC(publish=messages)
        await self.send_rpc(rpc.SerializeToString())

    async def send_rpc(self, data, stream=None):
        stream = stream or await negotiate(self.link.connection, str(PROTOCOL_ID_V11))
        await stream.send(encode_varint_prefixed(data))
        return stream

    def signed(self, data, topics=(TOPIC,), by=None):
        return sign(self.gossip[by or self.attacker], data, topics)


def sign(gossip, data, topics=(TOPIC,)):
    pubsub = gossip._pubsub
    message = rpc_pb2.Message(
        data=data, topicIDs=topics, from_id=pubsub.my_id.to_bytes(), seqno=pubsub._next_seqno()
    )
    message.signature = pubsub.sign_key.sign(b"libp2p-pubsub:" + message.SerializeToString())
    message.key = pubsub.host.get_public_key().serialize()
    return message


@asynccontextmanager
async def scene():
    """Run the three; at the end, make sure that the bystander was never disturbed."""
    async with running() as victim, running() as attacker, running() as bystander:
        here = Scene(victim, attacker, bystander)
        victim.set_handler(ECHO, echo)
        victim.set_handler(STRICT, refuse)
        sink = logger.add(here.log.append, level="WARNING", format="{message}")
        try:
            async with (
                gossiping(victim, here.heard) as here.gossip[victim],
                gossiping(attacker, []) as here.gossip[attacker],
                gossiping(bystander, []) as here.gossip[bystander],
                trio.open_nursery() as nursery,
            ):
                await connect(attacker, victim)
                await connect(bystander, victim)
                progress = [0]
                nursery.start_soon(carry_on, here, progress)
                await until(lambda: progress[0] >= 2, 20)
                yield here
                before = progress[0]
                await until(lambda: progress[0] >= before + 3, 20)
                assert victim.best_link(bystander.peer_id) is not None
                assert bystander.peer_id not in here.points_of
                nursery.cancel_scope.cancel()
        finally:
            logger.remove(sink)


async def carry_on(here, progress):
    """Use the victim as a good neighbour does; counts what went well."""
    while True:
        assert await ask(here.bystander, here.victim.peer_id) == b"ping"
        message = Leave(here.bystander.peer_id, progress[0])
        await here.gossip[here.bystander].publish(message)
        with trio.move_on_after(1):
            await until(lambda m=message: m in here.heard)
            progress[0] += 1
        await trio.sleep(0.02)


async def refuse(stream):
    await stream.read_exactly(1)
    raise Malformed("nonsense")


async def test_peer_whose_messages_break_a_protocol_is_banned_in_the_end():
    async with scene() as here:
        for _ in range(ENOUGH):
            stream = await here.attacker.open_stream(here.victim.peer_id, STRICT)
            await stream.send(b"x")
            with trio.fail_after(5), pytest.raises(TransportError):
                await stream.read_exactly(1)
        await here.until_banned()
        # It cannot come back meanwhile, and is not dialled either.
        route = Route(here.victim.addresses[0], "loopback", "lo")
        assert not await here.attacker.dial(here.victim.peer_id, route)
        assert here.victim.best_link(here.attacker.peer_id) is None
        back = Route(here.attacker.addresses[0], "loopback", "lo")
        assert not await here.victim.dial(here.attacker.peer_id, back)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x13/multistream/1.0.0\n\x05\xff\xfe\xff\xff\n",
        b"\x13/multistream/1.0.0\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 100,
        b"\xff" * 20,
        b"GET / HTTP/1.1\r\n\r\n" + b"\x00" * 100,
    ],
)
async def test_nonsense_in_the_negotiation_of_streams(nonsense):
    async with scene() as here:
        for _ in range(ENOUGH):
            stream = await here.link.connection.new_stream()
            await stream.write(nonsense)
        await here.until_banned()


async def test_nonsense_in_place_of_prefill_requests():
    async with scene() as here:
        service = PrefillService(lambda _: None, here.victim.warden)
        here.victim.set_handler(PREFILL, service.serve)
        for _ in range(ENOUGH):
            stream = await here.attacker.open_stream(here.victim.peer_id, PREFILL)
            await stream.send(b"\x00\x00\x00\x02\xc1\xc1")
            with suppress(TransportError):
                assert b"bad_request" in await stream.read_exactly(40)
        await here.until_banned()


async def test_streams_opened_and_left(monkeypatch):
    monkeypatch.setattr(inbound, "NEGOTIATION_S", 1)
    async with scene() as here:
        connection = here.link.connection.muxed_conn
        with suppress(MuxedStreamError), trio.move_on_after(5):
            for _ in range(10_000):
                await connection.open_stream()
        await here.until_banned()


@pytest.mark.parametrize(
    "frame",
    [
        b"\x07" * 12,
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01x",
        b"\x00\x00\x00\x01\x00\x00\x00\x01\x7f\xff\xff\xff",
    ],
)
async def test_broken_yamux_frames_end_the_connection_and_in_the_end_all_of_them(frame):
    async with scene() as here:
        for _ in range(3):
            session = here.link.connection.muxed_conn.secured_conn
            await session.send([memoryview(frame)])
            await until(lambda: here.victim.best_link(here.attacker.peer_id) is None)
            await until(lambda: here.link is None)
            if not here.victim.warden.refuses(here.attacker.peer_id):
                await connect(here.attacker, here.victim)
        await here.until_banned()


async def test_changed_noise_record_ends_the_connection_and_is_nobodys_fault():
    async with scene() as here:
        session = here.link.connection.muxed_conn.secured_conn
        await session._stream.send_all(b"\x00\x20" + os.urandom(32))
        await until(lambda: here.victim.best_link(here.attacker.peer_id) is None)
        assert not here.points_of
        await connect(here.attacker, here.victim)


async def test_gossip_that_is_no_protobuf_or_too_large():
    async with scene() as here:
        bad = (
            b"\xff\xff\xff",
            b"\x0a\xff",
            b"\x00" * 300_000,
            b"\x0b",
            b"\xff" * 100,
            b"\x0a\x05a",
        )
        for data in bad:
            try:
                await here.send_rpc(data)
            except TransportError as error:
                logger.debug("refused while it was being sent: {}", error)
        await here.until_banned()


@pytest.mark.parametrize("how", ["unsigned", "forged", "keyless", "no id"])
async def test_gossip_that_its_origin_has_not_signed_is_the_neighbours_fault(how):
    async with scene() as here:
        for number in range(ENOUGH):
            message = here.signed(b"data")
            if how == "unsigned":
                message.ClearField("signature")
            elif how == "forged":
                # In the name of the bystander: it must not be the one that is banned.
                message.from_id = here.bystander.libp2p.get_id().to_bytes()
            elif how == "keyless":
                message.key = b"\xff\xff"
                message.from_id = b"\x12\x20" + bytes(32)
            else:
                message.from_id = b""
            message.seqno = number.to_bytes(8, "big")
            await here.publish_raw(message)
        await here.until_banned()


def absurd(peer_id):
    return [
        b"\xff\xff",
        msgspec.msgpack.encode(Heartbeat("somebody else", 9)),
        msgspec.msgpack.encode(node_record(peer_id, memory_total=-1)),
        msgspec.msgpack.encode(node_record(peer_id, cluster="elsewhere")),
        msgspec.msgpack.encode(node_record(peer_id, incarnation=1 << 62)),
        msgspec.msgpack.encode(node_record(peer_id, host="x" * 5000)),
    ]


async def test_absurd_gossip_is_its_origins_fault_even_if_it_comes_through_another():
    async with scene() as here:
        # A neighbour of an earlier version, say, forwards what it does not know to be wrong.
        careless = here.gossip[here.bystander]._pubsub
        for data in absurd(here.attacker.peer_id):
            message = here.signed(data)
            careless._mark_msg_seen(message)
            await careless.router.publish(here.attacker.libp2p.get_id(), message)
        await here.until_banned()


async def test_message_for_further_topics_is_not_taken():
    async with scene() as here:
        for _ in range(ENOUGH):
            data = msgspec.msgpack.encode(Leave(here.attacker.peer_id, 9))
            await here.publish_raw(here.signed(data, (TOPIC, "another")))
        await here.until_banned()
        assert Leave(here.attacker.peer_id, 9) not in here.heard


async def test_flood_of_right_messages_is_held_up_and_then_stopped(monkeypatch):
    monkeypatch.setattr(pubsub_module, "BURST", 50.0)
    monkeypatch.setattr(pubsub_module, "MESSAGES_PER_S", 50.0)
    async with scene() as here:
        await connect(here.attacker, here.victim)
        flood = [
            here.signed(msgspec.msgpack.encode(Leave(here.attacker.peer_id, number)))
            for number in range(300)
        ]
        stream = None
        with trio.move_on_after(5):
            stream = await here.send_rpc(rpc_pb2.RPC(publish=flood).SerializeToString())
        assert stream is not None
        await trio.sleep(0.5)
        assert 0 < here.points_of.get(here.attacker.peer_id, 0) < LIMIT


async def test_control_messages_that_make_no_sense():
    async with scene() as here:
        for _ in range(ENOUGH):
            rpc = rpc_pb2.RPC()
            prune = rpc.control.prune.add(topicID=TOPIC)
            prune.peers.add(peerID=b"\xff", signedPeerRecord=b"\xff\xff")
            rpc.control.ihave.add(topicID="\ud7ff" * 10, messageIDs=[b"zz", b"\x00"])
            rpc.subscriptions.extend(
                rpc_pb2.RPC.SubOpts(subscribe=True, topicid=f"t{n}") for n in range(2000)
            )
            await here.send_rpc(rpc.SerializeToString())
        await here.until_banned()


async def test_connections_that_never_finish_their_handshake_shut_nobody_out():
    async with scene() as here:
        endpoint = parse_address(here.victim.addresses[0])
        streams = [await trio.open_tcp_stream(*endpoint) for _ in range(200)]
        for stream in streams[::2]:
            try:
                await stream.send_all(b"\x13/multistream/1.0.0\n\xff\xff\xff\xff\x0f")
            except trio.BrokenResourceError:
                continue
        await until(lambda: len(here.victim._half_open) <= 16)
        async with running() as newcomer:
            await connect(newcomer, here.victim)
            assert await ask(newcomer, here.victim.peer_id) == b"ping"
        # In the end none of them is left, whatever they do.
        await until(lambda: len(here.victim._half_open) == 0, 10)
        for stream in streams:
            await stream.aclose()


async def test_more_connections_one_after_another_than_a_host_has_at_a_time(monkeypatch):
    few = ConnectionConfig(max_connections=5, min_connections=0, low_watermark=0, high_watermark=5)
    monkeypatch.setattr(host_module, "connection_config", lambda: few)
    async with running() as a, running() as b:
        a.set_handler(ECHO, echo)
        for _ in range(12):
            await connect(b, a)
            await b.disconnect(a.peer_id)
            await until(lambda: not a.links)
        await connect(b, a)
        assert await ask(b, a.peer_id) == b"ping"


def test_limits_are_where_they_have_to_be():
    assert inbound.MAX_NEGOTIATING * Offence.IDLE.value >= LIMIT, "idle streams alone get banned"
    assert negotiation.NEGOTIATION_S <= 5
