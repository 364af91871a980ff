"""One yamux stream: its two windows, and the bytes that wait for its reader. No I/O."""

from __future__ import annotations

from node.transport.yamux.frames import INITIAL_WINDOW, MAX_U32, BadFrame, WindowExceeded

__all__ = ["StreamState"]


class StreamState:
    """State of one stream, as this side sees it.

    Received bytes go to the target until it is full, if a reader has attached one, and else to the
    buffer; so the buffer has bytes only while there is no target or it is full. At any time
    `receive_window`, the unread bytes and the bytes read but not yet credited make up the size of
    the window, which starts at 256 KiB and doubles, up to a limit, whenever the reader has emptied
    the buffer by the time that half of the window is to be credited: a reader that keeps up gets a
    window that does not hold the sender back, and one that does not cannot pile up more.

    Args:
        stream_id: number of the stream.
        max_window: limit of the receive window in bytes.

    Attributes:
        send_window: bytes that the peer still takes.
        receive_window: bytes that the peer may still send.
        finished_sending: this side has sent FIN.
        finished_receiving: the peer has sent FIN.
        reset: either side has sent RST.
        acknowledged: the peer has accepted the stream.
    """

    __slots__ = (
        "_buffer",
        "_filled",
        "_max_window",
        "_precredited",
        "_target",
        "_uncredited",
        "_window_size",
        "acknowledged",
        "finished_receiving",
        "finished_sending",
        "receive_window",
        "reset",
        "send_window",
        "stream_id",
    )

    def __init__(self, stream_id: int, *, max_window: int) -> None:
        self.stream_id = stream_id
        self.send_window = INITIAL_WINDOW
        self.receive_window = INITIAL_WINDOW
        self.finished_sending = False
        self.finished_receiving = False
        self.reset = False
        self.acknowledged = False
        self._max_window = max_window
        self._window_size = INITIAL_WINDOW
        self._buffer = bytearray()
        self._target: memoryview | None = None
        self._filled = 0
        self._uncredited = 0
        self._precredited = 0

    @property
    def buffered(self) -> int:
        """Bytes received that wait for a reader."""
        return len(self._buffer)

    @property
    def done(self) -> bool:
        """Whether no frame of the stream can come or go any more."""
        return self.reset or (self.finished_sending and self.finished_receiving)

    @property
    def target_full(self) -> bool:
        """Whether the attached target has been filled."""
        return self._target is not None and self._filled == len(self._target)

    def announce(self, length: int) -> None:
        """Take note that the peer is sending `length` bytes.

        Raises:
            BadFrame: it has already sent its last.
            WindowExceeded: it may not send so many.
        """
        if self.finished_receiving:
            raise BadFrame(f"data on stream {self.stream_id} after its end")
        if length > self.receive_window:
            raise WindowExceeded(
                f"{length} bytes on stream {self.stream_id}, whose window is {self.receive_window}"
            )
        self.receive_window -= length

    def grow_send_window(self, increment: int) -> None:
        """Take note that the peer takes `increment` bytes more.

        Raises:
            BadFrame: the window would not fit 32 bits.
        """
        if self.send_window + increment > MAX_U32:
            raise BadFrame(f"the window of stream {self.stream_id} overflows")
        self.send_window += increment

    def direct(self, length: int) -> memoryview | None:
        """Return where the next `length` bytes may be put without passing through the buffer."""
        target = self._target
        if target is None or len(target) - self._filled < length:
            return None
        return target[self._filled : self._filled + length]

    def put_direct(self, length: int) -> int:
        """Take note that `direct`'s memory has been filled; return the credit to announce."""
        self._filled += length
        return self._consumed(length)

    def put(self, data: memoryview) -> int:
        """Receive bytes; return the credit to announce, 0 if none is due."""
        credit = 0
        if self._target is not None:
            n = min(len(data), len(self._target) - self._filled)
            self._target[self._filled : self._filled + n] = data[:n]
            data = data[n:]
            if n:
                credit = self.put_direct(n)
        self._buffer += data
        return credit

    def take(self, limit: int | None) -> tuple[bytes, int]:
        """Return up to `limit` buffered bytes and the credit to announce."""
        n = len(self._buffer) if limit is None else min(limit, len(self._buffer))
        data = bytes(self._buffer) if n == len(self._buffer) else bytes(self._buffer[:n])
        del self._buffer[:n]
        return data, self._consumed(n)

    def attach(self, target: memoryview) -> int:
        """Let received bytes go to `target`, buffered ones first; return the credit to announce."""
        self._target, self._filled = target, 0
        n = min(len(target), len(self._buffer))
        with memoryview(self._buffer) as buffered:
            target[:n] = buffered[:n]
        del self._buffer[:n]
        return self.put_direct(n)

    def detach(self, *, give_back: bool) -> int:
        """Let go of the target; return how many bytes were put there.

        Args:
            give_back: return those bytes to the buffer, as if they had not been read.
        """
        if self._target is None:
            return 0
        filled, target = self._filled, self._target
        self._target, self._filled = None, 0
        if give_back and not self.reset:
            self._buffer[:0] = target[:filled]
            self._precredited += filled
        return filled

    def drop_buffer(self) -> None:
        """Forget what nobody will read."""
        self._buffer.clear()

    def _consumed(self, n: int) -> int:
        # Bytes that were given back have had their credit.
        repaid = min(n, self._precredited)
        self._precredited -= repaid
        self._uncredited += n - repaid
        if self.finished_receiving or self.reset or self._uncredited * 2 < self._window_size:
            return 0
        growth = 0
        if not self._buffer:
            growth = min(self._window_size, self._max_window - self._window_size)
            self._window_size += growth
        credit, self._uncredited = self._uncredited + growth, 0
        self.receive_window += credit
        return credit
