"""The server takes only valid requests, and sends nothing that was not asked for."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import LimitExceeded, LocalError, Malformed, ProtocolError, Truncated
from protocols.errors import UnexpectedMessage as Unexpected
from protocols.framing import encode_frame
from protocols.kv_prefill.messages import Accept, Chunk, Done, Failed, Refuse, Request, hash_tokens
from protocols.kv_prefill.server import Server
from tests.support.caches import chunk_for
from tests.support.structs import values_of

replace = msgspec.structs.replace
ENCODER = msgspec.msgpack.Encoder()
REFUSE = Refuse("bad_request", "no")


def read(stream: bytes) -> Server:
    """Return a server that has read a stream."""
    server, at = Server(), 0
    while server.wanted and at < len(stream):
        wanted = server.wanted
        server.feed(stream[at : at + wanted])
        at += wanted
    return server


def asked(request: Request) -> Server:
    return read(bytes(encode_frame(ENCODER, request)))


def sending(request: Request, accept: Accept) -> Server:
    server = asked(request)
    server.accept(accept)
    return server


def test_the_request_is_read(request_: Request) -> None:
    server = asked(request_)
    assert server.request == request_
    assert server.wanted == 0
    assert not server.finished


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, tokens=r.tokens[:-1], tokens_hash=hash_tokens(r.tokens[:-1])),
        lambda r: replace(r, tokens=r.tokens[:-4]),
        lambda r: replace(r, start=24),
        lambda r: replace(r, end=31),
        lambda r: replace(r, start=2**62, end=2**63),
    ],
    ids=["odd tokens", "hash", "empty", "beyond", "huge"],
)
def test_an_invalid_request_can_only_be_refused(
    request_: Request, accept: Accept, change: Callable[[Request], Request]
) -> None:
    server, frame = Server(), encode_frame(ENCODER, change(request_))
    server.feed(frame[:4])
    with pytest.raises(Malformed):
        server.feed(frame[4:])
    assert server.request is None
    assert server.wanted == 0
    with pytest.raises(LocalError):
        server.accept(accept)
    assert server.refuse(REFUSE) == encode_frame(ENCODER, REFUSE)
    assert server.finished


def test_all_tokens_may_be_asked_for(request_: Request) -> None:
    assert asked(replace(request_, start=0, end=30)).request is not None


@given(st.binary(min_size=1, max_size=100))
def test_random_bytes_are_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(len(body).to_bytes(4, "big") + body)


@given(values_of(Request))
def test_any_other_request_is_malformed(request: Request) -> None:
    if request.tokens_hash != hash_tokens(request.tokens):
        with pytest.raises(Malformed):
            asked(request)


def test_a_length_over_the_limit_is_refused_at_once() -> None:
    with pytest.raises(LimitExceeded):
        read(b"\x7f\xff\xff\xff")


def test_bytes_after_the_request_are_unexpected(request_: Request) -> None:
    with pytest.raises(Unexpected):
        asked(request_).feed(b"more")


def test_the_end_of_the_stream(request_: Request, accept: Accept) -> None:
    with pytest.raises(Truncated):
        Server().eof()
    server = sending(request_, accept)
    server.eof()
    assert not server.finished
    with pytest.raises(LocalError):
        server.chunk(chunk_for(accept.layout, 0, 4, 24)[0])


def test_what_is_sent(request_: Request, accept: Accept, done: Done) -> None:
    server = asked(request_)
    chunk, _ = chunk_for(accept.layout, 0, 4, 24)
    assert server.accept(accept) == encode_frame(ENCODER, accept)
    assert server.chunk(chunk) == encode_frame(ENCODER, chunk)
    assert server.done(done) == encode_frame(ENCODER, done)
    server.eof()
    assert server.finished


@pytest.mark.parametrize(
    "change",
    [
        lambda a: replace(a, layout=replace(a.layout, fingerprint="another")),
        lambda a: replace(a, layout=replace(a.layout, dtype="float8_e4m3fn")),
        lambda a: replace(a, cached=99),
    ],
)
def test_an_accept_that_does_not_answer_is_not_sent(
    request_: Request, accept: Accept, change: Callable[[Accept], Accept]
) -> None:
    server = asked(request_)
    with pytest.raises(LocalError):
        server.accept(change(accept))
    server.accept(accept)


@pytest.mark.parametrize(
    "place",
    [(0, 3, 24), (0, 4, 25), (0, 25, 30), (3, 0, 24)],
    ids=["before", "after", "beyond", "state"],
)
def test_a_chunk_outside_the_request_is_not_sent(
    request_: Request, accept: Accept, place: tuple[int, int, int]
) -> None:
    server = sending(request_, accept)
    with pytest.raises(LocalError, match="asked for"):
        server.chunk(chunk_for(accept.layout, *place)[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda c: replace(c, layer=5),
        lambda c: replace(c, raw_size=c.raw_size + 1),
        lambda c: replace(c, size=c.size + 1),
        lambda c: replace(c, checksum=b""),
    ],
)
def test_a_chunk_that_is_not_of_the_layout_is_not_sent(
    request_: Request, accept: Accept, change: Callable[[Chunk], Chunk]
) -> None:
    server = sending(request_, accept)
    with pytest.raises(LocalError):
        server.chunk(change(chunk_for(accept.layout, 0, 4, 24)[0]))


def test_a_codec_that_was_not_agreed_on_is_not_sent(request_: Request, accept: Accept) -> None:
    server = sending(request_, replace(accept, codec="raw"))
    with pytest.raises(LocalError, match="planes where raw"):
        server.chunk(replace(chunk_for(accept.layout, 0, 4, 24)[0], codec="planes"))


def test_the_wrong_order_is_a_local_error(request_: Request, accept: Accept, done: Done) -> None:
    chunk, _ = chunk_for(accept.layout, 0, 4, 24)
    for server in (Server(), asked(request_)):
        for send in (
            lambda s: s.chunk(chunk),
            lambda s: s.done(done),
            lambda s: s.failed(Failed("x")),
        ):
            with pytest.raises(LocalError):
                send(server)
    for end in (
        lambda s: s.done(done),
        lambda s: s.failed(Failed("x")),
    ):
        server = sending(request_, accept)
        for send in (lambda s: s.accept(accept), lambda s: s.refuse(REFUSE)):
            with pytest.raises(LocalError):
                send(server)
        end(server)
        for send in (lambda s: s.chunk(chunk), lambda s: s.done(done), lambda s: s.refuse(REFUSE)):
            with pytest.raises(LocalError):
                send(server)
