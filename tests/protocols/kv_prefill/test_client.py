"""The client lets nothing through that it did not ask for."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.cache import WindowLayer
from protocols.errors import (
    LayoutMismatch,
    LimitExceeded,
    LocalError,
    Malformed,
    ProtocolError,
    Truncated,
    UnexpectedMessage,
)
from protocols.framing import encode_frame
from protocols.kv_prefill.client import (
    Accepted,
    ChunkArrived,
    Client,
    Completed,
    Event,
    Refused,
    TransferFailed,
)
from protocols.kv_prefill.messages import (
    Accept,
    Chunk,
    Done,
    Failed,
    Refuse,
    Request,
    ServerMessage,
)
from tests.support.caches import HYBRID, chunk_for
from tests.support.structs import values_of

replace = msgspec.structs.replace
ENCODER = msgspec.msgpack.Encoder()


def feed(client: Client, stream: bytes) -> list[Event]:
    """Feed a stream as far as the client wants it, and the stream's end."""
    events: list[Event | None] = []
    at = 0
    while client.wanted and at + client.wanted <= len(stream):
        wanted = client.wanted
        events.append(client.feed(stream[at : at + wanted]))
        at += wanted
    events.append(client.eof())
    return [event for event in events if event is not None]


def frames(*messages: ServerMessage) -> bytes:
    return b"".join(bytes(encode_frame(ENCODER, message)) for message in messages)


def whole_cache(accept: Accept, request: Request) -> list[tuple[Chunk, bytes]]:
    return [
        chunk_for(accept.layout, layer, request.start, request.end, "planes")
        for layer in range(len(accept.layout.layers))
    ]


def test_a_transfer(request_: Request, accept: Accept, done: Done) -> None:
    client = Client(request_, HYBRID)
    cache = whole_cache(accept, request_)
    stream = frames(accept) + b"".join(frames(c) + p for c, p in cache) + frames(done)
    events = feed(client, stream)
    assert events[0] == Accepted(accept)
    assert events[-1] == Completed(done)
    arrived = [event for event in events if isinstance(event, ChunkArrived)]
    assert [(a.chunk, bytes(a.payload)) for a in arrived] == cache
    assert client.layout == accept.layout
    assert client.chunks == len(cache)
    assert client.sent_bytes == sum(len(payload) for _, payload in cache)
    assert client.raw_bytes == sum(chunk.raw_size for chunk, _ in cache)
    assert client.wanted == 0


def test_a_payload_is_announced_and_not_copied(request_: Request, accept: Accept) -> None:
    client = Client(request_, HYBRID)
    chunk, payload = chunk_for(accept.layout, 0, 4, 24)
    for frame in (frames(accept), frames(chunk)):
        client.feed(frame[:4])
        assert client.incoming is None
        client.feed(frame[4:])
    assert client.incoming == chunk
    assert client.wanted == chunk.size
    buffer = bytearray(payload)
    event = client.feed(buffer)
    assert isinstance(event, ChunkArrived)
    assert event.payload.obj is buffer
    assert client.incoming is None


def test_a_server_that_leaves_after_the_last_chunk_has_done_its_work(
    request_: Request, accept: Accept
) -> None:
    stream = frames(accept) + b"".join(frames(c) + p for c, p in whole_cache(accept, request_))
    assert feed(Client(request_, HYBRID), stream)[-1] == Completed(None)


def test_done_with_something_missing_is_a_failure(
    request_: Request, accept: Accept, done: Done
) -> None:
    client = Client(request_, HYBRID)
    chunk, payload = chunk_for(accept.layout, 0, 4, 20)
    (*_, last) = feed(client, frames(accept, chunk) + payload + frames(done))
    assert isinstance(last, TransferFailed)
    assert "layer 0 lacks [20, 24), and 3 more of 5 layers" in last.reason


def test_a_chunk_taken_out_of_the_coverage_is_missing(
    request_: Request, accept: Accept, done: Done
) -> None:
    client = Client(request_, HYBRID)
    for chunk, payload in whole_cache(accept, request_):
        stream = frames(chunk) + payload
        if chunk.layer == 0:
            stream = frames(accept) + stream
        at = 0
        while at < len(stream):
            wanted = client.wanted
            client.feed(stream[at : at + wanted])
            at += wanted
    client.coverage.remove(2, 4, 24)
    (last,) = feed(client, frames(done))
    assert isinstance(last, TransferFailed)


def test_refusal_and_failure_end_the_stream(request_: Request, accept: Accept) -> None:
    refuse = Refuse("busy", "two requests ahead", retryable=True, retry_after_ms=50)
    client = Client(request_, HYBRID)
    assert feed(client, frames(refuse)) == [Refused(refuse)]
    with pytest.raises(LocalError):
        client.feed(b"1234")

    client = Client(request_, HYBRID)
    failed = Failed("out of memory", retryable=False)
    events = feed(client, frames(accept, failed))
    assert events[1:] == [TransferFailed("out of memory", retryable=False)]
    assert client.coverage.usable_end == request_.start


def test_a_truncated_stream_says_what_is_missing(request_: Request, accept: Accept) -> None:
    with pytest.raises(Truncated, match="before the request was answered"):
        Client(request_, HYBRID).eof()
    chunk, payload = chunk_for(accept.layout, 0, 4, 24)
    for stream in (frames(accept, chunk) + payload, frames(accept, chunk) + payload[:-1]):
        client = Client(request_, HYBRID)
        with pytest.raises(Truncated, match="lacks"):
            feed(client, stream)
        assert client.wanted == 0


def test_a_window_layer_in_place_of_attention_is_a_mismatch_that_is_named(
    request_: Request, accept: Accept
) -> None:
    layers = list(HYBRID.layers)
    layers[0] = WindowLayer(kv_heads=2, k_dim=16, v_dim=8, window=512)
    theirs = replace(accept, layout=replace(accept.layout, layers=tuple(layers)))
    with pytest.raises(LayoutMismatch, match=r"layer 0 is WindowLayer.*ours is AttentionLayer"):
        feed(Client(request_, HYBRID), frames(theirs))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda a: replace(a, layout=replace(a.layout, fingerprint="g")), LayoutMismatch),
        (lambda a: replace(a, layout=replace(a.layout, layers=HYBRID.layers[:2])), LayoutMismatch),
        (lambda a: replace(a, layout=replace(a.layout, dtype="float8_e4m3fn")), Malformed),
        (lambda a: replace(a, cached=25), Malformed),
        (lambda a: replace(a, tokens_per_s=float("inf")), Malformed),
        (lambda a: replace(a, tokens_per_s=float("nan")), Malformed),
    ],
)
def test_an_answer_to_something_else(
    request_: Request,
    accept: Accept,
    change: Callable[[Accept], Accept],
    error: type[ProtocolError],
) -> None:
    client = Client(request_, HYBRID)
    with pytest.raises(error):
        feed(client, frames(change(accept)))
    assert client.wanted == 0


def test_a_codec_that_was_not_offered(request_: Request, accept: Accept) -> None:
    only_raw = replace(request_, codecs=("raw",))
    with pytest.raises(Malformed, match="codec"):
        feed(Client(only_raw, HYBRID), frames(accept))
    chunk, _ = chunk_for(accept.layout, 0, 4, 24, "planes")
    with pytest.raises(UnexpectedMessage, match="planes where raw"):
        feed(Client(only_raw, HYBRID), frames(replace(accept, codec="raw"), planes(chunk)))


def planes(chunk: Chunk) -> Chunk:
    return replace(chunk, codec="planes")


def resized(chunk: Chunk, size: int) -> Chunk:
    return replace(chunk, raw_size=size, size=size)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: replace(c, layer=5), Malformed),
        (lambda c: replace(c, start=3), Malformed),
        (lambda c: replace(c, start=24), Malformed),
        (lambda c: replace(c, end=25), Malformed),
        (lambda c: replace(c, end=2**63), Malformed),
        (lambda c: resized(replace(c, end=25), c.raw_size // 20 * 21), Malformed),
        (lambda c: resized(replace(c, start=3), c.raw_size // 20 * 21), Malformed),
        (lambda c: replace(c, raw_size=c.raw_size - 1), Malformed),
        (lambda c: replace(c, size=c.size - 1), Malformed),
        (lambda c: replace(c, size=c.size + 1), LimitExceeded),
        (lambda c: planes(replace(c, size=c.size + 1)), LimitExceeded),
        (lambda c: replace(c, size=2**62), LimitExceeded),
        (lambda c: replace(c, layer=3), Malformed),
    ],
)
def test_a_chunk_is_refused_by_its_header(
    request_: Request,
    accept: Accept,
    change: Callable[[Chunk], Chunk],
    error: type[ProtocolError],
) -> None:
    chunk, _ = chunk_for(accept.layout, 0, 4, 24)
    client = Client(request_, HYBRID)
    with pytest.raises(error):
        feed(client, frames(accept, change(chunk)))
    assert client.wanted == 0
    assert client.incoming is None


def test_messages_out_of_order(request_: Request, accept: Accept, done: Done) -> None:
    chunk, _ = chunk_for(accept.layout, 0, 4, 24)
    refuse = Refuse("busy", "")
    for messages in (
        (chunk,),
        (done,),
        (Failed("early"),),
        (accept, accept),
        (accept, refuse),
    ):
        with pytest.raises(UnexpectedMessage):
            feed(Client(request_, HYBRID), frames(*messages))


@given(data=st.data())
@settings(max_examples=50)
def test_any_messages_are_events_or_a_protocol_error(
    request_: Request, accept: Accept, data: st.DataObject
) -> None:
    messages = data.draw(st.lists(values_of(ServerMessage), max_size=3))
    client = Client(request_, HYBRID)
    stream = frames(*([accept] if data.draw(st.booleans()) else []), *messages)
    try:
        events = feed(client, stream)
    except ProtocolError:
        events = []
    assert not any(isinstance(event, Completed) for event in events)
    assert client.wanted == 0


def test_a_request_that_nobody_may_accept_is_not_sent(request_: Request) -> None:
    for bad in (
        replace(request_, end=31),
        replace(request_, start=24),
        replace(request_, tokens=b"123"),
        replace(request_, tokens_hash=bytes(16)),
        replace(request_, fingerprint="another"),
    ):
        with pytest.raises(LocalError):
            Client(bad, HYBRID)
