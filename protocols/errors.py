"""Everything that `protocols` raises, in one tree."""

__all__ = [
    "ChecksumMismatch",
    "LayoutMismatch",
    "LimitExceeded",
    "LocalError",
    "Malformed",
    "ProtocolError",
    "Truncated",
    "UnexpectedMessage",
]


class ProtocolError(Exception):
    """The other side broke the protocol; the stream it did so on is of no further use."""


class Malformed(ProtocolError):
    """Bytes that do not decode to a message, or a message whose fields contradict each other."""


class Truncated(ProtocolError):
    """The stream ended inside a frame, or before the message that had to come."""


class LimitExceeded(ProtocolError):
    """A size over its limit, found before anything of that size was allocated."""


class ChecksumMismatch(ProtocolError):
    """A payload whose bytes are not those that were sent."""


class UnexpectedMessage(ProtocolError):
    """A well-formed message that may not come now."""


class LayoutMismatch(ProtocolError):
    """A cache layout that is not ours: a cache in it would be injected into the wrong places."""


class LocalError(RuntimeError):
    """This side did what the protocol does not let it do now; a mistake here, not the peer's."""
