"""The two state machines against each other, over streams that are cut anywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.cache import CacheLayout
from protocols.errors import ProtocolError
from protocols.kv_prefill.client import ChunkArrived, Client, Completed, Event, TransferFailed
from protocols.kv_prefill.codec import decode, encode_chunk
from protocols.kv_prefill.messages import (
    Accept,
    Codec,
    Done,
    Failed,
    Request,
    hash_tokens,
    pack_tokens,
)
from protocols.kv_prefill.server import Server
from tests.support.caches import HYBRID, arrays_for, layouts
from tests.support.streams import Pipe, cut


def request_for(layout: CacheLayout, start: int, end: int) -> Request:
    tokens = pack_tokens(list(range(end + 1)))
    return Request(
        id="r",
        model="m",
        fingerprint=layout.fingerprint,
        tokens=tokens,
        tokens_hash=hash_tokens(tokens),
        start=start,
        end=end,
        dtypes=(layout.dtype,),
        codecs=("planes", "raw"),
        deadline_ms=1000,
    )


def serve(
    server: Server, accept: Accept, order: list[tuple[int, int, int]], done: Done, seed: int
) -> tuple[bytes, dict[tuple[int, int, int], list[np.ndarray]]]:
    """Return all that a server sends, and the arrays that it sent."""
    stream = bytearray(server.accept(accept))
    sent = {}
    for place in order:
        layer, start, end = place
        arrays = arrays_for(np.random.default_rng(seed), accept.layout, layer, end - start)
        chunk, payload = encode_chunk(layer, start, end, arrays, accept.codec)
        stream += server.chunk(chunk) + b"".join(payload)
        sent[place] = arrays
    return bytes(stream + server.done(done)), sent


def ask(client: Client, cuts: list[int]) -> Server:
    """Return a server that has the client's request, cut in pieces."""
    server, pipe = Server(), Pipe()
    for piece in cut(bytes(client.request_frame), cuts):
        pipe.send(piece)
        while (data := pipe.take(server.wanted)) is not None:
            server.feed(data)
    return server


def receive(client: Client, pieces: list[bytes]) -> list[Event]:
    """Return the events of a stream that comes in pieces and then ends."""
    pipe, events = Pipe(), []
    for piece in pieces:
        pipe.send(piece)
        while (data := pipe.take(client.wanted)) is not None:
            events.append(client.feed(data))
    events.append(client.eof())
    return [event for event in events if event is not None]


@given(data=st.data())
@settings(max_examples=60)
def test_a_cache_goes_over_whatever_the_cuts(data: st.DataObject, done: Done) -> None:
    layout = data.draw(layouts())
    start = data.draw(st.integers(0, 5))
    middle, end = sorted(data.draw(st.tuples(st.integers(start + 1, 9), st.integers(10, 14))))
    codec: Codec = data.draw(st.sampled_from(["raw", "planes"]))
    spans = [(start, middle), (middle, end)]
    places = [(layer, *span) for span in spans for layer in range(len(layout.layers))]
    # Computed in order, and some of it again, as after a preemption.
    order = places + data.draw(st.lists(st.sampled_from(places), max_size=3))

    client = Client(request_for(layout, start, end), layout)
    server = ask(client, data.draw(st.lists(st.integers(0, 200), max_size=5)))
    accept = Accept(layout, "e", 0, codec, 0.0)
    stream, sent = serve(server, accept, order, done, data.draw(st.integers(0, 99)))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    if data.draw(st.booleans()):
        cuts = list(range(min(len(stream), 600)))

    events = receive(client, cut(stream, cuts))
    arrived = [event for event in events if isinstance(event, ChunkArrived)]
    assert [(a.chunk.layer, a.chunk.start, a.chunk.end) for a in arrived] == order
    for event, place in zip(arrived, order, strict=True):
        decoded = decode(event.payload, event.chunk, client.layout)
        assert [a.tobytes() for a in decoded] == [a.tobytes() for a in sent[place]]
    assert events[-1] == Completed(done)
    assert client.coverage.complete


@given(data=st.data())
@settings(max_examples=150)
def test_a_damaged_or_cut_stream_never_gives_contents_that_were_not_sent(
    data: st.DataObject, done: Done
) -> None:
    client = Client(request_for(HYBRID, 0, 8), HYBRID)
    order = [(layer, 0, 8) for layer in range(len(HYBRID.layers))]
    accept = Accept(HYBRID, "e", 0, "planes", 0.0)
    stream, sent = serve(ask(client, []), accept, order, done, seed=0)
    contents = {b"".join(a.tobytes() for a in arrays) for arrays in sent.values()}
    damaged = bytearray(stream)
    if data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del damaged[data.draw(st.integers(0, len(stream) - 1)) :]
    try:
        events = receive(client, [bytes(damaged)])
        for event in events:
            if isinstance(event, ChunkArrived):
                decoded = decode(event.payload, event.chunk, client.layout)
                assert b"".join(a.tobytes() for a in decoded) in contents
    except ProtocolError:
        return
    if not client.coverage.complete:
        assert isinstance(events[-1], TransferFailed)


@pytest.mark.parametrize("after", [0, 2])
def test_a_computation_that_fails_leaves_what_it_sent(after: int) -> None:
    layout = CacheLayout("bfloat16", HYBRID.layers[:1], "f")
    client = Client(request_for(layout, 0, 8), layout)
    server = ask(client, [])
    stream = bytearray(server.accept(Accept(layout, "e", 0, "raw", 0.0)))
    for start in range(after):
        arrays = arrays_for(np.random.default_rng(0), layout, 0, 1)
        chunk, payload = encode_chunk(0, start, start + 1, arrays, "raw")
        stream += server.chunk(chunk) + b"".join(payload)
    stream += server.failed(Failed("the engine died"))
    events = receive(client, [bytes(stream)])
    assert events[-1] == TransferFailed("the engine died", retryable=True)
    assert client.coverage.usable_end == after
