"""Memory that a node shares with an engine: both real ends of it, in one process or in two."""

from __future__ import annotations

import errno
import os
import random
import socket
import sys
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from engines.channel import NodeChannel
from engines.chunks import ChunkSender
from node.errors import EngineDied
from node.instances import memory as node_memory
from node.instances.connection import EngineConnection, RequestHandle
from node.instances.instance import Instance, InstanceSpec
from node.instances.memory import EngineMemory, share_memory
from node.prefill.engine import prefill_here
from node.prefill.transfer import inject_all
from protocols.chat import Sampling
from protocols.engine import (
    Acknowledge,
    Cancel,
    Cancelled,
    Finished,
    Generate,
    GenerateStarted,
    Inject,
    Injected,
    NodeMessage,
    PrefillChunk,
    Receive,
    Share,
)
from protocols.framing import Frame, encode_frame
from protocols.kv_prefill.client import ChunkArrived
from protocols.kv_prefill.messages import Chunk, Request, hash_tokens, pack_tokens
from tests.support import toy_engine
from tests.support.processes import children_with

SIZE = 1 << 16
TOKENS = 16
ROW = 2 * 64 * 2
"""Bytes of a token's keys in the arrays below."""


@asynccontextmanager
async def ends(
    size: int = SIZE, *, answer: bool = True
) -> AsyncIterator[tuple[EngineConnection, NodeChannel, list[Frame[NodeMessage]]]]:
    """Both ends of a channel with memory, and what the engine's end has heard."""
    ours, theirs = socket.socketpair()
    memory = share_memory(ours, size)
    assert memory is not None
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    connection = EngineConnection(stream, memory)
    channel = NodeChannel(theirs)
    heard: list[Frame[NodeMessage]] = []

    def listen() -> None:
        for frame in channel.frames():
            heard.append(frame)
            if answer and isinstance(frame.message, Cancel):
                channel.send(Cancelled(frame.message.request))

    reader = threading.Thread(target=listen, daemon=True)
    reader.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await until(lambda: memory.usable)
        yield connection, channel, heard
        connection.close("the test is over")
        nursery.cancel_scope.cancel()
    reader.join(5)
    channel.close()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 (threads and processes tell nobody)
            await trio.sleep(0.005)


def used(connection: EngineConnection) -> int:
    assert connection.memory is not None
    return connection.memory.used


def inject(handle: RequestHandle, size: int) -> Inject:
    return Inject(handle.id, Chunk(0, 0, 1, "raw", size, size, bytes(8)))


async def test_a_payload_goes_to_the_engine_without_the_socket_and_is_freed_by_it():
    async with ends() as (connection, channel, heard), connection.open("r") as handle:
        payload = await handle.take(1000)
        payload[:] = bytes(range(250)) * 4
        await handle.send(inject(handle, 1000), payload)
        await until(lambda: bool(heard))
        message, came = heard[0]
        assert isinstance(message, Inject)
        assert message.at == 0
        assert bytes(came) == bytes(range(250)) * 4
        payload[0] = 99
        assert came[0] == 99, "it is the same memory"
        assert used(connection) >= 1000
        channel.send(Injected("r", 0))
        await until(lambda: used(connection) == 0)


async def test_what_was_not_sent_is_given_back():
    async with ends() as (connection, _, _):
        async with connection.open("r") as handle:
            handle.give_back(await handle.take(1000))
            assert used(connection) == 0
            await handle.take(1000)
            assert used(connection) > 0
        assert used(connection) == 0


async def test_the_end_of_a_request_frees_what_the_engine_has():
    async with ends() as (connection, _, heard):
        async with connection.open("r") as handle:
            for _ in range(3):
                await handle.send(inject(handle, 100), await handle.take(100))
        assert isinstance(heard[-1].message, Cancel)
        assert used(connection) == 0


async def test_an_engine_frees_only_what_the_request_has():
    async with ends() as (connection, channel, heard):  # noqa: SIM117 (its end waits for them)
        async with connection.open("a") as a, connection.open("b") as b:
            await a.send(inject(a, 100), await a.take(100))
            payload = await b.take(100)
            before = used(connection)
            for request, at in (("b", 0), ("", 0), ("a", 64), ("", 128), ("b", 128), ("a", -1)):
                channel.send(Injected(request, at))
            channel.send(Injected("a", 0))
            await until(lambda: used(connection) < before)
            assert used(connection) == 128, "b's, of which the engine has not even been told"
            await b.send(inject(b, 100), payload)
            await until(lambda: len(heard) == 2)
            assert isinstance(heard[1].message, Inject)
            assert heard[1].message.at == 128


@pytest.mark.parametrize("at", [-1, SIZE - 99, SIZE, 1 << 62])
async def test_an_engine_that_points_outside_the_memory_is_given_up(at: int):
    async with ends() as (connection, channel, _), connection.open("r") as handle:
        channel.send(PrefillChunk("r", Chunk(0, 0, 1, "raw", 100, 100, bytes(8)), at))
        with pytest.raises(EngineDied, match=f"a payload of 100 bytes at {at} of {SIZE}"):
            await handle.receive()


@pytest.mark.parametrize("at", [-1, SIZE - 99, SIZE, 1 << 62])
async def test_a_node_that_points_outside_the_memory_ends_the_channel(at: int):
    ours, theirs = socket.socketpair()
    assert share_memory(ours, SIZE) is not None
    chunk = Chunk(0, 0, 1, "raw", 100, 100, bytes(8))
    ours.sendall(encode_frame(msgspec.msgpack.Encoder(), Inject("r", chunk, at)))
    channel = NodeChannel(theirs)
    with ours, pytest.raises(Exception, match=f"a payload of 100 bytes at {at} of {SIZE}"):
        list(channel.frames())
    channel.close()


async def test_memory_that_is_full_is_waited_for():
    async with ends() as (connection, channel, _), connection.open("r") as handle:
        await handle.send(inject(handle, SIZE), await handle.take(SIZE))
        taken: list[memoryview] = []

        async def take() -> None:
            taken.append(await handle.take(100))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await trio.sleep(0.05)
            assert not taken
            channel.send(Injected("r", 0))
        assert used(connection) > 0, "it came from the shared memory"


async def test_memory_that_stays_full_is_done_without(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_memory, "ROOM_PATIENCE_S", 0.02)
    async with ends() as (connection, _, heard), connection.open("r") as handle:
        await handle.send(inject(handle, SIZE), await handle.take(SIZE))
        payload = await handle.take(100)
        payload[:] = bytes(range(100))
        await handle.send(inject(handle, 100), payload)
        await until(lambda: len(heard) == 2)
        message, came = heard[1]
        assert isinstance(message, Inject)
        assert message.at is None
        assert bytes(came) == bytes(range(100))


async def test_nobody_waits_for_the_memory_of_an_engine_that_has_ended():
    async with ends() as (connection, _, _):
        handle = connection.open("r")
        await handle.take(SIZE)
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handle.take, 100)
                await trio.sleep(0.05)
                connection.close("it ended")


def emit(sink: ChunkSender, request: str, number: int) -> None:
    keys = np.full((TOKENS, 2, 64), number, np.uint16)
    sink.emit(request, 0, number * TOKENS, (number + 1) * TOKENS, (keys, keys))


@contextmanager
def sink_on(channel: NodeChannel, request: str) -> Iterator[ChunkSender]:
    sink = ChunkSender(channel, 3)
    sink.expect(request)
    sink.open(request, "raw", 0)
    yield sink
    sink.close()


async def test_chunks_come_through_memory_and_then_frames_and_all_are_right():
    """There is room for five of twenty at a time, and nothing is given back for the first ten."""
    size = 2 * TOKENS * ROW
    async with ends(5 * size) as (connection, channel, heard), connection.open("r") as handle:
        with sink_on(channel, "r") as sink:
            for number in range(20):
                emit(sink, "r", number)
            sink.finish("r", 0)
            frames = [await handle.receive()]
            while len(frames) < 22:
                frames.append(await handle.receive())
            places = []
            for number, (message, payload) in enumerate(frames[1:-1]):
                assert isinstance(message, PrefillChunk)
                assert len(payload) == size
                assert (np.frombuffer(payload, np.uint16) == number).all()
                places.append(message.at)
            assert sorted(at for at in places if at is not None) == [size * k for k in range(5)]
            # Leaving the request gives back what nobody has acknowledged.
            memory = channel.memory
            assert memory is not None
            assert memory.used == 5 * size
            del heard[:]
    given_back = {frame.message.at for frame in heard if isinstance(frame.message, Acknowledge)}
    assert given_back >= {size * k for k in range(5)}


async def test_the_engine_has_its_memory_back_however_a_request_ends():
    choose = random.Random(3)
    async with ends() as (connection, channel, heard):
        told = 0
        sinks: dict[str, ChunkSender] = {}

        def pass_on() -> None:
            """Do what the engine process does with what it hears of chunks."""
            nonlocal told
            for message, _ in heard[told:]:
                told += 1
                if isinstance(message, Cancel):
                    sinks[message.request].cancel(message.request)
                elif isinstance(message, Acknowledge):
                    sinks[message.request].acknowledge(message.request, message.size, message.at)

        for turn in range(12):
            request = f"r{turn}"
            with sink_on(channel, request) as sink:
                sinks[request] = sink
                async with connection.open(request) as handle:
                    await handle.send(Receive(request, 0, 1))
                    for number in range(6):
                        emit(sink, request, number)
                    sink.finish(request, 0)
                    for _ in range(choose.randrange(8)):
                        frame = await handle.receive()
                        if isinstance(frame.message, PrefillChunk) and choose.random() < 0.5:
                            event = ChunkArrived(frame.message.chunk, frame.payload)
                            await acknowledge(handle, event)
                memory = channel.memory
                assert memory is not None
                await until(lambda memory=memory: pass_on() is None and memory.used == 0)


async def acknowledge(handle: RequestHandle, event: ChunkArrived) -> None:
    await handle.send(Acknowledge(handle.id, event.chunk.size), event.payload)


def test_a_region_has_no_name_and_cannot_be_cut_short():
    descriptor = node_memory._make_region("test", SIZE)
    try:
        assert os.fstat(descriptor).st_nlink == 0
        assert os.fstat(descriptor).st_size == SIZE
        if sys.platform == "linux":
            with pytest.raises(OSError) as raised:
                os.ftruncate(descriptor, 1)
            assert raised.value.errno == errno.EPERM
    finally:
        os.close(descriptor)


async def test_where_there_is_no_memfd_a_file_without_a_name_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    async with ends() as (connection, _, heard), connection.open("r") as handle:
        assert os.listdir(tmp_path) == []
        payload = await handle.take(100)
        payload[:] = bytes(range(100))
        await handle.send(inject(handle, 100), payload)
        await until(lambda: bool(heard))
        assert bytes(heard[0].payload) == bytes(range(100))


def test_without_memory_to_be_had_there_is_none(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(os, "ftruncate", refuse)
    ours, theirs = socket.socketpair()
    before = len(os.listdir("/dev/fd"))
    with ours, theirs:
        assert share_memory(ours, SIZE) is None
        assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("descriptors", [0, 1])
def test_an_engine_does_without_memory_that_is_not_offered_properly(descriptors: int):
    ours, theirs = socket.socketpair()
    files = [node_memory._make_region("test", SIZE) for _ in range(descriptors)]
    frame = encode_frame(msgspec.msgpack.Encoder(), Share(SIZE, SIZE))
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))
    ours.sendmsg([frame], [rights] if files else [])
    for file in files:
        os.close(file)
    ours.sendall(encode_frame(msgspec.msgpack.Encoder(), Cancel("r")))
    ours.shutdown(socket.SHUT_WR)
    before = len(os.listdir("/dev/fd"))
    channel = NodeChannel(theirs)
    with ours:
        assert [frame.message for frame in channel.frames()] == [Cancel("r")]
        assert channel.memory is None
        assert len(os.listdir("/dev/fd")) == before
    channel.close()


def test_an_engine_does_without_memory_that_is_smaller_than_was_said():
    ours, theirs = socket.socketpair()
    files = [node_memory._make_region("test", SIZE) for _ in range(2)]
    frame = encode_frame(msgspec.msgpack.Encoder(), Share(SIZE, 2 * SIZE))
    ours.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))])
    for file in files:
        os.close(file)
    ours.shutdown(socket.SHUT_WR)
    channel = NodeChannel(theirs)
    with ours:
        assert list(channel.frames()) == []
        assert channel.memory is None
    channel.close()


# With engine processes.


def toy(*options: str) -> Instance:
    async def nowhere() -> Path:
        return Path("/nowhere")

    spec = InstanceSpec(model="toy", engine="mlx", roles=("prefill", "decode"))
    command = toy_engine.command(*options)
    return Instance(spec, "toy", nowhere, lambda: None, lambda *_: None, lambda _: command)


@asynccontextmanager
async def toys(number: int, *options: str) -> AsyncIterator[list[Instance]]:
    instances = [toy(*options) for _ in range(number)]
    async with trio.open_nursery() as nursery:
        for instance in instances:
            nursery.start_soon(instance.run)
        await until(lambda: all(instance.state == "ready" for instance in instances))
        yield instances
        nursery.cancel_scope.cancel()


def shared(instance: Instance) -> EngineMemory:
    assert instance._connection is not None
    assert instance._connection.memory is not None
    return instance._connection.memory


def prompt_of(words: int) -> tuple[Request, list[int]]:
    tokens = toy_engine.tokenize(" ".join(f"word{number}" for number in range(words)))
    packed = pack_tokens(tokens)
    request = Request(
        id="r",
        model="toy",
        fingerprint=toy_engine.LAYOUT.fingerprint,
        tokens=packed,
        tokens_hash=hash_tokens(packed),
        start=0,
        end=words - 1,
        dtypes=("bfloat16",),
        codecs=("raw",),
        deadline_ms=60_000,
    )
    return request, tokens


async def answer(prefill: Instance, decode: Instance, words: int) -> tuple[int, str]:
    """Have one engine read a prompt and the other answer it."""
    request, tokens = prompt_of(words)

    async def progress(_: int) -> None: ...

    text, injected = "", 0
    async with decode.request("r") as handle:
        async with prefill_here(prefill, request) as source:
            assert (await inject_all(source, handle, words - 1, 20, progress)).complete
        await handle.send(Generate(handle.id, pack_tokens(tokens), Sampling()))
        while not isinstance(message := (await handle.receive()).message, Finished):
            if isinstance(message, GenerateStarted):
                injected = message.injected
            text += getattr(message, "text", "")
    assert text == toy_engine.answer_to(tokens)
    return injected, text


@pytest.mark.parametrize("size", [64 << 20, 5000, 64])
async def test_a_cache_is_right_however_much_of_it_fits_the_memory(
    monkeypatch: pytest.MonkeyPatch, size: int
):
    monkeypatch.setattr("node.instances.process.share_memory", partial(share_memory, size=size))
    async with toys(2) as (prefill, decode):
        assert shared(decode).usable
        for words in (200, 500):
            injected, _ = await answer(prefill, decode, words)
            assert injected == words - 1
        assert shared(decode).used == 0
        assert not shared(prefill)._arrived


async def test_nothing_is_left_of_the_memory_of_an_engine_that_is_killed():
    request, _ = prompt_of(3000)
    async with toys(1, "--step-s", "0.02") as (prefill,):
        before = len(os.listdir("/dev/fd"))
        memory = [shared(prefill)]
        async with prefill_here(prefill, request) as source:
            await source.next_event()
            event = await source.next_event()
            assert isinstance(event, ChunkArrived)
            for child in children_with("--step-s"):
                child.kill()
            last = event
            while isinstance(event, ChunkArrived):
                last, event = event, await source.next_event()
            keys = np.frombuffer(last.payload, np.uint16)
            assert keys.any(), "what has come can still be read"
        del keys, last, event, source
        await until(lambda: prefill.state == "ready" and shared(prefill) is not memory[0])
        assert not memory[0]._arrived
        memory.clear()
        await until(lambda: len(os.listdir("/dev/fd")) <= before)
