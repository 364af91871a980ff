import pytest

from node.transport.yamux.frames import (
    BadFrame,
    Flag,
    GoAway,
    Header,
    Kind,
    pack_header,
    unpack_header,
)


def test_headers_are_those_of_the_specification():
    assert pack_header(Kind.DATA, Flag.SYN | Flag.FIN, 3, 5) == bytes.fromhex(
        "00 00 0005 00000003 00000005"
    )
    assert pack_header(Kind.GO_AWAY, 0, 0, GoAway.PROTOCOL_ERROR) == bytes.fromhex(
        "00 03 0000 00000000 00000001"
    )


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_packed_unpacks(kind):
    stream_id = 7 if kind <= Kind.WINDOW_UPDATE else 0
    packed = pack_header(kind, Flag.ACK, stream_id, 2**32 - 1)
    assert unpack_header(packed + b"more") == Header(kind, Flag.ACK, stream_id, 2**32 - 1)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("01 00 0000 00000001 00000000", "version 1"),
        ("00 04 0000 00000000 00000000", "type 4"),
        ("00 00 0000 00000000 00000001", "stream 0"),
        ("00 01 0001 00000000 00000001", "stream 0"),
        ("00 02 0001 00000009 00000001", "stream 9"),
        ("00 03 0000 00000001 00000000", "stream 1"),
    ],
)
def test_headers_that_cannot_be_are_refused(header, reason):
    with pytest.raises(BadFrame, match=reason):
        unpack_header(bytes.fromhex(header))
