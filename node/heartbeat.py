"""A heartbeat on each connection.

Nothing below notices for minutes that a link has silently gone, so each side of a connection sends
a number every second on one long-lived stream and wants it back. That measures the round trip too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import trio

from node.transport.errors import StreamClosed
from node.transport.streams import ByteStream

__all__ = ["INTERVAL_S", "PROTOCOL_ID", "TIMEOUT_S", "HeartbeatLost", "answer", "beat"]

PROTOCOL_ID: Final = "/baton/heartbeat/1"
INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 4.0
_SIZE: Final = 8


class HeartbeatLost(Exception):
    """The peer no longer answers on this connection."""


async def beat(stream: ByteStream, answered: Callable[[float], None]) -> None:
    """Send heartbeats until the connection fails; never returns.

    Args:
        stream: a stream of `PROTOCOL_ID`.
        answered: told the round trip in seconds after each one.

    Raises:
        HeartbeatLost: no answer within `TIMEOUT_S`, or a wrong one.
        TransportError: the stream failed.
    """
    while True:
        sent, started = os.urandom(_SIZE), trio.current_time()
        try:
            with trio.fail_after(TIMEOUT_S):
                await stream.send(sent)
                received = await stream.read_exactly(_SIZE)
        except trio.TooSlowError:
            raise HeartbeatLost(f"no answer within {TIMEOUT_S:g} s") from None
        if received != sent:
            raise HeartbeatLost("it answered with another number")
        answered(trio.current_time() - started)
        await trio.sleep(INTERVAL_S)


async def answer(stream: ByteStream) -> None:
    """Handle the other end of `beat` until the stream ends.

    Raises:
        StreamReset: the stream was reset.
        ConnectionLost: the connection is gone.
    """
    while True:
        try:
            number = await stream.read_exactly(_SIZE)
        except StreamClosed:
            return
        await stream.send(number)
