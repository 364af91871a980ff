"""Frames survive any cut of the stream; what is none is found before it costs memory."""

import tracemalloc
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import LimitExceeded, Malformed, ProtocolError, Truncated
from protocols.framing import MAX_MESSAGE, FrameReader, encode_frame


class Note(msgspec.Struct, frozen=True, tag="note"):
    text: str
    size: int = 0
    kind: Literal["a", "b"] = "a"


ENCODER = msgspec.msgpack.Encoder()


def reader(max_message: int = MAX_MESSAGE, max_payload: int = 1 << 20) -> FrameReader[Note]:
    return FrameReader(
        msgspec.msgpack.Decoder(Note),
        lambda note: note.size,
        max_message=max_message,
        max_payload=max_payload,
    )


def feed_all(frames: FrameReader[Note], stream: bytes) -> list[tuple[Note, bytes]]:
    """Feed a whole stream and its end."""
    found, at = [], 0
    while at + frames.wanted <= len(stream):
        wanted = frames.wanted
        frame = frames.feed(stream[at : at + wanted])
        at += wanted
        if frame is not None:
            found.append((frame.message, bytes(frame.payload)))
    if at < len(stream) or not frames.between_frames:
        frames.eof()
        raise Truncated("inside a length")
    frames.eof()
    return found


notes = st.tuples(st.text(max_size=300), st.binary(max_size=50))


@given(st.lists(notes, max_size=6))
def test_frames_come_out_as_they_went_in(items: list[tuple[str, bytes]]) -> None:
    sent = [(Note(text, len(payload)), payload) for text, payload in items]
    stream = b"".join(bytes(encode_frame(ENCODER, note)) + payload for note, payload in sent)
    assert feed_all(reader(), stream) == sent


@given(notes, st.data())
def test_a_cut_stream_is_truncated(item: tuple[str, bytes], data: st.DataObject) -> None:
    stream = bytes(encode_frame(ENCODER, Note(item[0], len(item[1])))) + item[1]
    cut = data.draw(st.integers(1, len(stream) - 1))
    with pytest.raises(Truncated):
        feed_all(reader(), stream[:cut])


@given(st.binary(max_size=200))
def test_random_bytes_are_frames_or_a_protocol_error(stream: bytes) -> None:
    try:
        found = feed_all(reader(), stream)
    except ProtocolError:
        return
    assert all(isinstance(note, Note) for note, _ in found)


def test_the_payload_is_the_buffer_that_was_fed() -> None:
    frames = reader()
    frame = encode_frame(ENCODER, Note("n", 3))
    frames.feed(frame[:4])
    assert frames.headed is None
    assert frames.feed(frame[4:]) is None
    assert frames.headed == Note("n", 3)
    payload = bytearray(b"abc")
    whole = frames.feed(payload)
    assert whole is not None
    payload[0] = ord("x")
    assert bytes(whole.payload) == b"xbc"
    assert frames.headed is None


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b"\x00\x00\x00\x00", Malformed),
        (b"\xff\xff\xff\xff", LimitExceeded),
        (b"\x00\x80\x00\x01", LimitExceeded),
        (b"\x00\x00\x00\x01\xc0", Malformed),
        (b"\x00\x00\x00\x01\xc1", Malformed),
    ],
)
def test_bad_starts(stream: bytes, error: type[ProtocolError]) -> None:
    with pytest.raises(error):
        feed_all(reader(), stream)


@pytest.mark.parametrize(("size", "error"), [(-1, Malformed), ((1 << 20) + 1, LimitExceeded)])
def test_a_payload_size_is_checked_before_it_is_wanted(
    size: int, error: type[ProtocolError]
) -> None:
    frame = encode_frame(ENCODER, Note("n", size))
    frames = reader()
    frames.feed(frame[:4])
    with pytest.raises(error):
        frames.feed(frame[4:])


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a"], ids=["arrays", "maps"])
def test_deep_nesting_is_malformed(nest: bytes) -> None:
    body = b"\x83\xa4type\xa4note\xa4text\xa1n\xa1z" + nest * 100_000 + b"\x01"
    frames = reader()
    frames.feed(len(body).to_bytes(4, "big"))
    with pytest.raises(Malformed):
        frames.feed(body)


@pytest.mark.parametrize(
    "claim", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
)
def test_a_huge_claim_inside_a_message_allocates_nothing(claim: bytes) -> None:
    body = b"\x82\xa4type\xa4note\xa4text" + claim
    frames = reader()
    frames.feed(len(body).to_bytes(4, "big"))
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            frames.feed(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(LimitExceeded):
        encode_frame(ENCODER, Note("x" * MAX_MESSAGE))


def test_feeding_another_size_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="4 are wanted"):
        reader().feed(b"\x00\x00\x00")
