"""A heartbeat on each connection, by which its two ends also agree on what it is and is for.

Nothing below notices for minutes that a link has silently gone, so each side of a connection sends
a `Beat` every second on one long-lived stream and wants it answered. That measures the round trip
too. Both the beat and its answer say what the sender knows of the link.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import trio

from node.messages import read_message, write_message
from node.transport.streams import ByteStream
from protocols.errors import Truncated
from protocols.framing import FrameReader
from protocols.link import Beat

__all__ = ["INTERVAL_S", "PROTOCOL_ID", "TIMEOUT_S", "HeartbeatLost", "LinkSide", "answer", "beat"]

PROTOCOL_ID: Final = "/baton/heartbeat/2"
INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 4.0
"""Without a byte from the peer for so long, and an answer due, the link is lost."""
_LOOK_S: Final = 1.0
"""The least time that an answer has, also when this process itself was held up."""
_PATIENCE_S: Final = 20.0
"""How long an answer may wait behind bulk data that does come."""
_MAX_MESSAGE: Final = 4 << 10

_decoder: msgspec.msgpack.Decoder[Beat] = msgspec.msgpack.Decoder(Beat)


class HeartbeatLost(Exception):
    """The peer no longer answers on this connection."""


class LinkSide(Protocol):
    """What this end of a connection knows of it."""

    def say(self) -> Beat:
        """Return what is to be told to the other end; the number is set here."""
        ...

    def told(self, beat: Beat) -> None:
        """Take in what the other end says."""
        ...

    def answered(self, rtt_s: float) -> None:
        """Take note that the other end lives."""
        ...

    def silent_s(self) -> float | None:
        """Return for how long nothing at all has come; None where that cannot be told."""
        ...

    async def wait_for_news(self) -> None:
        """Return when there is something new to tell."""
        ...


async def beat(stream: ByteStream, side: LinkSide) -> None:
    """Send heartbeats until the connection fails; never returns.

    Args:
        stream: a stream of `PROTOCOL_ID`.
        side: told of each answer, and asked what to say.

    Raises:
        HeartbeatLost: no answer within `TIMEOUT_S`, or a wrong one.
        ProtocolError: the answer is none.
        TransportError: the stream failed.
    """
    reader = _reader()
    number, unanswered_since = 0, trio.current_time()
    while True:
        number, sent_at = number + 1, trio.current_time()
        silent_s = side.silent_s() or 0.0
        try:
            with trio.fail_after(max(TIMEOUT_S - silent_s, min(_LOOK_S, TIMEOUT_S))):
                await write_message(stream, msgspec.structs.replace(side.say(), number=number))
                side.told(await _answer_to(number, stream, reader))
        except trio.TooSlowError:
            silent_s = side.silent_s()
            if silent_s is None or silent_s >= TIMEOUT_S:
                raise HeartbeatLost(f"nothing heard for {TIMEOUT_S:g} s") from None
            if trio.current_time() - unanswered_since > _PATIENCE_S:
                raise HeartbeatLost(f"no heartbeat answered for {_PATIENCE_S:g} s") from None
            continue
        unanswered_since = trio.current_time()
        side.answered(unanswered_since - sent_at)
        with trio.move_on_after(INTERVAL_S):
            await side.wait_for_news()


async def answer(stream: ByteStream, find: Callable[[], LinkSide | None]) -> None:
    """Handle the other end of `beat` until the stream ends.

    Args:
        stream: that the peer has opened.
        find: returns the connection's side here; None as long as it is not known.

    Raises:
        ProtocolError: what came is no heartbeat.
        StreamReset: the stream was reset.
        ConnectionLost: the connection is gone.
    """
    reader = _reader()
    while True:
        try:
            received = await read_message(stream, reader)
        except Truncated:
            return
        side, said = find(), Beat(0)
        if side is not None:
            side.told(received)
            said = side.say()
        await write_message(stream, msgspec.structs.replace(said, number=received.number))


async def _answer_to(number: int, stream: ByteStream, reader: FrameReader[Beat]) -> Beat:
    while True:
        received = await read_message(stream, reader)
        if received.number == number:
            return received
        # An answer that came too late to be waited for is no news.
        if not 0 < received.number < number:
            raise HeartbeatLost("it answered with another number")


def _reader() -> FrameReader[Beat]:
    return FrameReader(_decoder, max_message=_MAX_MESSAGE)
