"""A yamux stream under trio, behind py-libp2p's interface."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio
from libp2p.abc import IMuxedStream
from libp2p.stream_muxer.exceptions import MuxedStreamClosed, MuxedStreamEOF, MuxedStreamReset

from node.transport.yamux.flow import StreamState
from node.transport.yamux.parts import without_first_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from node.transport.yamux.connection import YamuxConnection

__all__ = ["MuxedConnectionLost", "YamuxStream"]


class MuxedConnectionLost(MuxedStreamReset):
    """The stream is over because the connection is."""


class YamuxStream(IMuxedStream):
    """One stream of a `YamuxConnection`.

    A cancelled read takes nothing. A cancelled write has sent some whole frames and nothing of
    another, so the connection goes on. One task reads at a time; writers take turns.

    Attributes:
        state: what the state machine knows of the stream.
        closed_at: trio's time at which `close` was called, None before.
    """

    def __init__(self, connection: YamuxConnection, state: StreamState) -> None:
        self.muxed_conn = connection
        self.closed_at: float | None = None
        self._connection = connection
        self.state = state
        self._reading = False
        self._writing = trio.Lock()
        self._read_wake = trio.Event()
        self._write_wake = trio.Event()

    @property
    def stream_id(self) -> int:
        """The stream's number on its connection."""
        return self.state.stream_id

    @property
    def is_closed(self) -> bool:
        """Whether nothing can come or go any more."""
        return self.state.done or self._connection.failure is not None

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the peer's host and port."""
        return self._connection.get_remote_address()

    async def read(self, n: int | None = None) -> bytes:
        """Return between 1 and `n` bytes, or all that are there without `n` (or with -1).

        Raises:
            MuxedStreamEOF: the peer has sent its last byte, and it has been read.
            MuxedStreamReset: the stream was reset.
            MuxedConnectionLost: the connection is gone.
            trio.BusyResourceError: another task is reading.
        """
        if n == 0:
            return b""
        with self._exclusive_read():
            await trio.lowlevel.checkpoint()
            while not self.state.buffered:
                self._raise_if_unreadable()
                await self._sleep_until_readable()
            data = self._connection.session.take(self.state, None if n is None or n < 0 else n)
            self._connection.flush_soon()
            return data

    async def read_into(self, buffer: memoryview) -> int:
        """Fill `buffer`, straight from the connection where possible.

        Args:
            buffer: writable bytes; not to be used by anybody else until this returns.

        Returns:
            How many bytes were filled: fewer than all, 0 included, if the peer's last came first.

        Raises:
            MuxedStreamReset: the stream was reset.
            MuxedConnectionLost: the connection is gone.
            trio.BusyResourceError: another task is reading.
        """
        state = self.state
        with self._exclusive_read():
            await trio.lowlevel.checkpoint()
            self._raise_if_reset()
            self._connection.session.attach(state, buffer)
            self._connection.flush_soon()
            taken = False
            try:
                while not state.target_full and not state.finished_receiving:
                    self._raise_if_unreadable()
                    await self._sleep_until_readable()
                self._raise_if_reset()
                taken = True
            finally:
                filled = state.detach(give_back=not taken)
            return filled

    async def write(self, data: bytes) -> None:
        """Write `data`. As `write_many`."""
        await self.write_many((data,))

    async def write_many(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write `buffers` one after another, without copying the large ones.

        Returns when the connection has taken them; they must not change until then. Waits while
        the peer's window is full, for as long as the connection lives.

        Raises:
            MuxedStreamClosed: this side has closed the stream for writing.
            MuxedStreamReset: the stream was reset.
            MuxedConnectionLost: the connection is gone.
        """
        parts = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        async with self._writing:
            self.raise_if_unwritable()
            while parts:
                await self._sleep_until_writable()
                sent = await self._connection.send_data(self, parts)
                parts = without_first_bytes(parts, sent)

    async def room(self) -> int:
        """Wait until the peer's window is open, and return the bytes that it takes.

        Raises as `write_many` does.
        """
        await trio.lowlevel.checkpoint()
        async with self._writing:
            self.raise_if_unwritable()
            await self._sleep_until_writable()
            return self.state.send_window

    async def close_write(self) -> None:
        """Send FIN: the peer reads to the end of what was written. Reading goes on."""
        await trio.lowlevel.checkpoint()
        self._finish()

    async def close(self) -> None:
        """End the stream: as `close_write`, and a peer that does not end it too is reset later."""
        self._finish()
        if self.closed_at is None:
            self.closed_at = trio.current_time()
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        """Give up the stream in both directions, at once."""
        if self._connection.failure is None:
            self._connection.session.reset(self.state)
            self._connection.flush_soon()
        self._connection.forget_if_done(self.state)
        self.wake()
        await trio.lowlevel.checkpoint()

    def set_deadline(self, ttl: int) -> None:
        """Refuse: deadlines are trio's cancel scopes here.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("use a trio cancel scope")

    async def __aenter__(self) -> YamuxStream:
        """Return the stream itself; leaving the context closes it."""
        return self

    def wake(self) -> None:
        """Let the reader and the writer look again at the stream's state."""
        self.wake_reader()
        self.wake_writer()

    def wake_reader(self) -> None:
        """Let the reader look again."""
        self._read_wake.set()

    def wake_writer(self) -> None:
        """Let the writer look again."""
        self._write_wake.set()

    def _finish(self) -> None:
        if self._connection.failure is None:
            self._connection.session.finish(self.state)
            self._connection.flush_soon()
        self._connection.forget_if_done(self.state)
        self.wake_writer()

    async def _sleep_until_writable(self) -> None:
        while not self.state.send_window:
            self._write_wake = trio.Event()
            await self._write_wake.wait()
            self.raise_if_unwritable()

    async def _sleep_until_readable(self) -> None:
        self._read_wake = trio.Event()
        await self._read_wake.wait()

    @contextmanager
    def _exclusive_read(self) -> Iterator[None]:
        if self._reading:
            raise trio.BusyResourceError("another task is reading this stream")
        self._reading = True
        try:
            yield
        finally:
            self._reading = False

    def _raise_if_reset(self) -> None:
        if self.state.reset:
            raise MuxedStreamReset("the stream was reset")

    def _raise_if_unreadable(self) -> None:
        self._raise_if_reset()
        if self.state.finished_receiving:
            raise MuxedStreamEOF("the peer has closed the stream")
        if self._connection.failure is not None:
            raise MuxedConnectionLost(self._connection.failure)

    def raise_if_unwritable(self) -> None:
        """Raise what `write_many` raises, if it must."""
        self._raise_if_reset()
        if self.state.finished_sending:
            raise MuxedStreamClosed("the stream is closed for writing")
        if self._connection.failure is not None:
            raise MuxedConnectionLost(self._connection.failure)
