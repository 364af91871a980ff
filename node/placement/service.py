"""`/baton/placement/1`: requests to the master and its orders, sent and served."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import trio
from loguru import logger

from node.cluster import Cluster
from node.errors import BatonError
from node.messages import read_message, write_message
from node.placement.master import Master
from node.placement.orders import OrderTaker
from node.transport.errors import TransportError
from node.transport.streams import ByteStream
from protocols.errors import ProtocolError
from protocols.framing import FrameReader
from protocols.placement import (
    PROTOCOL_ID,
    Done,
    MasterRequest,
    Order,
    PlacementMessage,
    Refused,
    Remove,
    Reply,
)

__all__ = ["PlacementService"]

REQUEST_TIMEOUT_S: Final = 10.0
"""For a request to arrive whole, once its stream is open."""
ORDER_TIMEOUT_S: Final = 10.0
"""For a node to carry an order out; ending an engine takes the longest."""
ANSWER_TIMEOUT_S: Final = 40.0
"""For the master to answer: it may try several nodes."""
PATIENCE_S: Final = 30.0
"""How long a request waits for there to be a master that answers."""
RETRY_S: Final = 0.5
_MAX_MESSAGE: Final = 64 << 10

_messages: msgspec.msgpack.Decoder[PlacementMessage] = msgspec.msgpack.Decoder(PlacementMessage)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class _Work(NamedTuple):
    """A request to this node as the master, worked on whether or not somebody waits for it."""

    request: MasterRequest
    replied: trio.Event
    replies: list[Reply]


class PlacementService:
    """Asks the master, is it when its turn comes, and takes its orders.

    Args:
        cluster: opens streams, and knows the master.
        orders: carries the master's orders out.
    """

    def __init__(self, cluster: Cluster, orders: OrderTaker) -> None:
        self._cluster = cluster
        self._orders = orders
        self._master = Master(cluster, self._send_order)
        self._work_in, self._work_out = trio.open_memory_channel[_Work](64)

    async def run(self) -> None:
        """Work on what this node is asked as the master, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for work in self._work_out:
                nursery.start_soon(self._handle, work)

    async def ask(self, request: MasterRequest) -> Reply:
        """Have the master decide on a request; a master that is lost is waited for.

        What has been asked is done even if the caller is cancelled.
        """
        again = False
        reason = "there is no master"
        with trio.move_on_after(PATIENCE_S):
            while True:
                master = self._cluster.master
                if master is not None:
                    reply = await self._ask(master[0], request)
                    if isinstance(reply, Refused) and reply.code in ("not_master", "stale_term"):
                        reason = reply.reason
                    elif isinstance(reply, str):
                        reason = reply
                    elif again and isinstance(request, Remove) and _unknown(reply):
                        return Done()  # by the order whose reply was lost
                    else:
                        return reply
                    logger.info("the master did not answer, asking again: {}", reason)
                    again = True
                with trio.move_on_after(RETRY_S):
                    await self._cluster.wait_until(lambda each, last=master: each.master != last)
        return Refused(
            "no_master", f"no master has answered within {PATIENCE_S:g} s: {reason}", "try again"
        )

    async def serve(self, stream: ByteStream) -> None:
        """Serve one stream to its end.

        Raises:
            ProtocolError: what came is no request.
            TransportError: the stream broke.
        """
        sender = stream.peer_id.to_base58()
        try:
            with trio.fail_after(REQUEST_TIMEOUT_S):
                message = await read_message(
                    stream, FrameReader(_messages, max_message=_MAX_MESSAGE)
                )
        except trio.TooSlowError:
            logger.warning("{} opened a placement stream and sent no request", sender)
            await stream.reset()
            return
        if isinstance(message, Order):
            reply = await self._orders.carry_out(message, sender)
        else:
            reply = await self._ask_here(message)
        await write_message(stream, reply)
        await stream.close()

    async def _ask(self, peer_id: str, request: MasterRequest) -> Reply | str:
        if peer_id == self._cluster.peer_id:
            return await self._ask_here(request)
        return await self._exchange(peer_id, request, ANSWER_TIMEOUT_S)

    async def _ask_here(self, request: MasterRequest) -> Reply:
        work = _Work(request, trio.Event(), [])
        await self._work_in.send(work)
        await work.replied.wait()
        return work.replies[0]

    async def _handle(self, work: _Work) -> None:
        work.replies.append(await self._master.handle(work.request))
        work.replied.set()

    async def _send_order(self, peer_id: str, order: Order) -> Reply:
        if peer_id == self._cluster.peer_id:
            return await self._orders.carry_out(order, peer_id)
        reply = await self._exchange(peer_id, order, ORDER_TIMEOUT_S)
        return Refused("unreachable", reply) if isinstance(reply, str) else reply

    async def _exchange(
        self, peer_id: str, message: MasterRequest | Order, seconds: float
    ) -> Reply | str:
        """Return a peer's reply, or in words why there is none."""
        try:
            with trio.fail_after(seconds):
                stream = await self._cluster.open_stream(peer_id, PROTOCOL_ID)
                try:
                    await write_message(stream, message)
                    reader = FrameReader(_replies, max_message=_MAX_MESSAGE)
                    reply = await read_message(stream, reader)
                    await stream.close()
                except BaseException:
                    await stream.reset()
                    raise
        except trio.TooSlowError:
            return f"{peer_id} has not answered within {seconds:g} s"
        except (BatonError, TransportError, ProtocolError) as error:
            return f"{peer_id} cannot be asked: {error}"
        return reply


def _unknown(reply: Reply) -> bool:
    return isinstance(reply, Refused) and reply.code == "unknown_instance"
