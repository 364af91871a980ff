"""`ByteStream`: a libp2p stream as the rest of the node uses it.

It works over any muxer. Over this package's own yamux it reads into the caller's buffers and writes
from them without copies; over py-libp2p's stock yamux it does the same by slower means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias, runtime_checkable

import trio
from libp2p.abc import IMuxedConn, INetStream
from libp2p.io.exceptions import IOException
from libp2p.network.stream.exceptions import StreamClosed as NetStreamClosed
from libp2p.network.stream.exceptions import StreamEOF as NetStreamEOF
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamClosed, MuxedStreamEOF, MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import Yamux as StockYamux
from libp2p.stream_muxer.yamux.yamux import YamuxStream as StockStream

from node.transport.errors import ConnectionLost, StreamClosed, StreamReset
from node.transport.yamux.stream import MuxedConnectionLost

__all__ = ["BulkStream", "ByteStream", "BytesLike"]

BytesLike: TypeAlias = bytes | bytearray | memoryview

_STOCK_PIECE: Final = 65524
"""Bytes that stock yamux sends as one frame."""
_GOODBYE_S: Final = 2.0
"""Seconds that the end of a stream may take to be sent; only a stalled connection needs them."""
_STOCK_POLL: Final = 0.005
"""Seconds between looks at a stock stream's window, which offers no event to wait for."""


@runtime_checkable
class BulkStream(Protocol):
    """A muxed stream that moves bytes straight between buffers and the connection."""

    async def read_into(self, buffer: memoryview) -> int:
        """Fill `buffer`; return how much of it was filled before the stream ended."""
        ...

    async def write_many(self, buffers: Sequence[BytesLike]) -> None:
        """Write `buffers` one after another, as if they were one."""
        ...

    async def room(self) -> int:
        """Wait until the peer takes bytes, and return how many it takes now."""
        ...


class ByteStream:
    """An ordered stream of bytes to a peer and back.

    One task may read while another sends; a second reader is a mistake, further senders take turns
    by whole `send` calls. A cancelled `send` may have sent a part, so the stream is then good for
    nothing but `reset`. The same holds for a cancelled read over stock yamux; over this package's
    own, a cancelled read takes nothing.

    Args:
        stream: a stream whose protocol has been negotiated.
    """

    def __init__(self, stream: INetStream) -> None:
        self._stream = stream
        muxed = stream.muxed_stream if isinstance(stream, NetStream) else None
        self._bulk = muxed if isinstance(muxed, BulkStream) else None
        self._stock = muxed if isinstance(muxed, StockStream) else None
        self._sending = trio.Lock()
        self._finished = False

    @property
    def peer_id(self) -> ID:
        """The peer at the other end, authenticated by the handshake."""
        return self._stream.muxed_conn.peer_id

    @property
    def connection(self) -> IMuxedConn:
        """What carries the stream."""
        return self._stream.muxed_conn

    @property
    def protocol(self) -> str | None:
        """The protocol that was negotiated for the stream."""
        return self._stream.get_protocol()

    @property
    def is_fast(self) -> bool:
        """Whether reads and writes go straight between buffers and the connection."""
        return self._bulk is not None

    async def read_exactly_into(self, buffer: bytearray | memoryview) -> None:
        """Fill `buffer` with the next bytes.

        Raises:
            StreamClosed: the stream ended first; `received` tells how many bytes had come.
            StreamReset: the stream was reset.
            ConnectionLost: the connection is gone.
        """
        view = memoryview(buffer).cast("B")
        filled = 0
        try:
            with self._translated():
                if self._bulk is not None:
                    filled = await self._bulk.read_into(view)
                while filled < len(view):
                    data = await self._stream.read(len(view) - filled)
                    view[filled : filled + len(data)] = data
                    filled += len(data)
        except StreamClosed as ended:
            ended.received = filled
            raise

    async def read_exactly(self, n: int) -> bytearray:
        """Return the next `n` bytes. Raises as `read_exactly_into` does."""
        buffer = bytearray(n)
        await self.read_exactly_into(buffer)
        return buffer

    async def send(self, *buffers: BytesLike) -> None:
        """Send `buffers` one after another; return when the connection has taken them.

        The buffers must not change until then. Waits while the peer's window is full.

        Raises:
            StreamClosed: this side has closed the stream.
            StreamReset: the stream was reset.
            ConnectionLost: the connection is gone.
        """
        async with self._sending:
            if self._finished:
                raise StreamClosed("this side has closed the stream")
            with self._translated():
                if self._bulk is not None:
                    await self._bulk.write_many(buffers)
                else:
                    for buffer in buffers:
                        await self._send_stock(memoryview(buffer).cast("B"))

    async def room(self) -> int:
        """Wait until the peer takes bytes, and return how many can be sent that it has room for.

        Raises as `send` does. Over stock yamux it is a guess, and comes at once.
        """
        with self._translated():
            if self._bulk is not None:
                return await self._bulk.room()
        await trio.lowlevel.checkpoint()
        return _STOCK_PIECE

    async def finish(self) -> None:
        """Tell the peer that nothing more comes; reading goes on.

        Raises:
            StreamReset: the stream was reset.
            ConnectionLost: the connection is gone.
        """
        async with self._sending:
            self._finished = True
            with self._translated(), self._goodbye():
                if isinstance(self._stream, NetStream):
                    await self._stream.close_write()
                else:
                    await self._stream.close()

    async def close(self) -> None:
        """End the stream in both directions; what was sent still arrives. Never fails."""
        self._finished = True
        try:
            with self._translated(), self._goodbye():
                await self._stream.close()
        except (StreamClosed, StreamReset, ConnectionLost):
            return

    async def reset(self) -> None:
        """Give up the stream at once, so that the peer's reads and writes fail. Never fails."""
        with self._goodbye():
            await self._stream.reset()

    @staticmethod
    def _goodbye() -> trio.CancelScope:
        # Stock yamux writes its last frame within these calls, and must not be cancelled in it.
        return trio.move_on_after(_GOODBYE_S, shield=True)

    async def _send_stock(self, view: memoryview) -> None:
        # A stock write that waits for the window gives up after 5 s, and one that is cancelled
        # breaks the connection: so wait here, and shield what then does not wait.
        while view:
            room = _STOCK_PIECE
            if self._stock is not None:
                while self._stock.send_window <= 0 and not self._stock_is_closed():  # noqa: ASYNC110
                    await trio.sleep(_STOCK_POLL)
                room = min(room, max(self._stock.send_window, 1))
            await trio.lowlevel.checkpoint_if_cancelled()
            with trio.CancelScope(shield=True):
                await self._stream.write(bytes(view[:room]))
            view = view[room:]

    def _stock_is_closed(self) -> bool:
        stock = self._stock
        closed = stock is not None and (stock.closed or stock.send_closed)
        return closed or self._connection_gone()

    def _connection_gone(self) -> bool:
        connection = self._stream.muxed_conn
        if isinstance(connection, StockYamux) and connection.event_shutting_down.is_set():
            return True
        return connection.is_closed

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise py-libp2p's errors as this package's own."""
        try:
            yield
        except (MuxedStreamError, IOException) as error:
            closed = (MuxedStreamEOF, MuxedStreamClosed, NetStreamEOF, NetStreamClosed)
            lost = isinstance(error, MuxedConnectionLost) or isinstance(
                error.__cause__, MuxedConnectionLost
            )
            if lost or (self._bulk is None and self._connection_gone()):
                raise ConnectionLost(f"the connection to {self.peer_id} is gone") from error
            # Stock yamux tells the reader of a stream that was reset that it has ended.
            was_reset = self._stock is not None and self._stock.reset_received
            if isinstance(error, closed) and not was_reset:
                raise StreamClosed("the stream has ended") from error
            raise StreamReset("the stream was reset") from error
