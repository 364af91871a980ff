"""What goes wrong on a stream, in one tree.

Callers of `ByteStream` see these and nothing of py-libp2p's own.
"""

__all__ = ["ConnectionLost", "StreamClosed", "StreamReset", "TransportError"]


class TransportError(Exception):
    """A stream or a connection can no longer be used as asked."""


class StreamClosed(TransportError):
    """The stream has ended: the peer sent its last byte, or this side closed it.

    Attributes:
        received: bytes of an unfinished read that had come before the end. 0 means that the
            stream ended where a read began, which many protocols allow.
    """

    def __init__(self, message: str, *, received: int = 0) -> None:
        super().__init__(message)
        self.received = received


class StreamReset(TransportError):
    """One side gave up the stream; what was on its way is lost."""


class ConnectionLost(TransportError):
    """The connection under the stream is gone, and every stream on it."""
