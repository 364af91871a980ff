"""Every message of every protocol comes back equal, and damage never goes further than an error."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.chat import ChatEvent, ChatRequest
from protocols.engine import EngineMessage, NodeMessage
from protocols.errors import Malformed, ProtocolError, Truncated
from protocols.framing import FrameReader, encode_frame
from protocols.gossip import GossipMessage
from protocols.kv_prefill.messages import (
    Chunk,
    ClientMessage,
    Request,
    ServerMessage,
    hash_tokens,
    pack_tokens,
    unpack_tokens,
)
from protocols.placement import PlacementMessage, Reply
from tests.support.structs import values_of

UNIONS = {
    "node to engine": NodeMessage,
    "engine to node": EngineMessage,
    "chat request": ChatRequest,
    "chat events": ChatEvent,
    "gossip": GossipMessage,
    "placement": PlacementMessage,
    "placement replies": Reply,
    "kv-prefill client": ClientMessage,
    "kv-prefill server": ServerMessage,
}
ENCODER = msgspec.msgpack.Encoder()
over_unions = pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS.keys())


def read(union: Any, stream: bytes) -> Any:
    """Return the message that a stream of one frame holds."""
    frames: FrameReader[Any] = FrameReader(msgspec.msgpack.Decoder(union))
    at = 0
    while at + frames.wanted <= len(stream):
        wanted = frames.wanted
        frame = frames.feed(stream[at : at + wanted])
        at += wanted
        if frame is not None:
            return frame.message
    frames.eof()
    raise Truncated("inside a length")


@over_unions
@given(st.data())
@settings(max_examples=60)
def test_round_trip(union: Any, data: st.DataObject) -> None:
    message = data.draw(values_of(union))
    assert read(union, bytes(encode_frame(ENCODER, message))) == message


@over_unions
@given(st.data())
@settings(max_examples=60)
def test_damage_is_an_error_or_another_valid_message(union: Any, data: st.DataObject) -> None:
    frame = encode_frame(ENCODER, data.draw(values_of(union)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        message = read(union, bytes(frame))
    except ProtocolError:
        return
    again = encode_frame(ENCODER, message)
    assert encode_frame(ENCODER, read(union, bytes(again))) == again


@over_unions
@given(st.binary(min_size=1, max_size=100))
@settings(max_examples=60)
def test_random_bodies_are_malformed(union: Any, body: bytes) -> None:
    with pytest.raises(Malformed):
        read(union, len(body).to_bytes(4, "big") + body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer", -1),
        ("start", -1),
        ("end", -1),
        ("raw_size", -1),
        ("size", -1),
        ("size", 1.5),
        ("codec", "zip"),
        ("checksum", b"1234567"),
        ("checksum", b"123456789"),
    ],
)
def test_a_chunk_of_impossible_fields_is_malformed(field: str, value: object) -> None:
    chunk = Chunk(0, 0, 1, "raw", 4, 4, b"12345678")
    fields = {"type": "chunk", **msgspec.structs.asdict(chunk)}
    assert read(ServerMessage, bytes(encode_frame(ENCODER, fields))) == chunk
    fields[field] = value
    with pytest.raises(Malformed):
        read(ServerMessage, bytes(encode_frame(ENCODER, fields)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("model", "m" * 513),
        ("dtypes", []),
        ("dtypes", ["int8"]),
        ("codecs", []),
        ("codecs", ["zip"]),
        ("deadline_ms", 0),
        ("tokens_hash", b""),
    ],
)
def test_a_request_of_impossible_fields_is_malformed(field: str, value: object) -> None:
    request = Request("r", "m", "f", b"", hash_tokens(b""), 0, 1, ("bfloat16",), ("raw",), 1)
    fields = {"type": "request", **msgspec.structs.asdict(request)}
    assert read(ClientMessage, bytes(encode_frame(ENCODER, fields))) == request
    fields[field] = value
    with pytest.raises(Malformed):
        read(ClientMessage, bytes(encode_frame(ENCODER, fields)))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_tokens_round_trip(tokens: list[int]) -> None:
    packed = pack_tokens(tokens)
    assert len(packed) == 4 * len(tokens)
    assert unpack_tokens(packed) == tokens


def test_packed_tokens_are_little_endian() -> None:
    assert pack_tokens([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_does_not_fit_is_not_packed(token: int) -> None:
    with pytest.raises(OverflowError):
        pack_tokens([token])


def test_a_part_of_a_token_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        unpack_tokens(b"12345")
