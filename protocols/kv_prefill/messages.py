"""The messages of `/kv-prefill/1`, in the order in which a stream carries them.

    client                          server
    Request                 ->
                            <-      Accept, or Refuse and the end
                            <-      Chunk and its payload, repeated
                            <-      Done, or Failed

Each is one frame (see `protocols.framing`): a length-prefixed msgpack map whose `type` names it.
A `Chunk` frame is followed by exactly `Chunk.size` payload bytes.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

import msgspec

from protocols.cache import CacheLayout, DType

__all__ = [
    "PROTOCOL_ID",
    "Accept",
    "Chunk",
    "ClientMessage",
    "Codec",
    "Done",
    "Failed",
    "Refuse",
    "RefuseCode",
    "Request",
    "ServerMessage",
    "Timings",
    "hash_tokens",
    "pack_tokens",
    "unpack_tokens",
]

PROTOCOL_ID = "/kv-prefill/1"

Codec: TypeAlias = Literal["raw", "planes"]
"""`raw`: the bytes as they are. `planes`: sign/exponent bytes through zstd, the rest as is."""

RefuseCode: TypeAlias = Literal[
    "unknown_model", "layout_mismatch", "busy", "too_long", "bad_request", "not_ready"
]


def pack_tokens(tokens: list[int]) -> bytes:
    """Pack token ids as little-endian unsigned 32-bit integers.

    Raises:
        OverflowError: an id is negative or does not fit 32 bits.
    """
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def unpack_tokens(packed: bytes) -> list[int]:
    """Undo `pack_tokens`.

    Raises:
        ValueError: the length is no multiple of four.
    """
    if len(packed) % 4:
        raise ValueError(f"{len(packed)} bytes are not a whole number of 32-bit token ids")
    return memoryview(packed).cast("I").tolist()


def hash_tokens(packed: bytes) -> bytes:
    """Return the 16-byte BLAKE2b digest of packed token ids."""
    return hashlib.blake2b(packed, digest_size=16).digest()


class Request(msgspec.Struct, frozen=True, tag="request"):
    """Asks for the cache of `tokens[start:end]`, computed with `tokens[:start]` before it."""

    id: str
    model: str
    fingerprint: str
    tokens: bytes
    tokens_hash: bytes
    start: int
    end: int
    dtypes: tuple[DType, ...]
    codecs: tuple[Codec, ...]
    deadline_ms: int


class Accept(msgspec.Struct, frozen=True, tag="accept"):
    """The request is being computed."""

    layout: CacheLayout
    epoch: str
    """Names the engine process; a new process is a new epoch."""
    cached: int
    """Tokens of `[0, end)` that the prefill engine's own prefix cache held."""
    codec: Codec
    tokens_per_s: float
    """Expected prefill rate; 0 when nothing has been measured yet."""


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """The request is not going to be computed; nothing follows."""

    code: RefuseCode
    reason: str
    retryable: bool = False
    retry_after_ms: int = 0


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """Heads the payload of one layer's cache for tokens `[start, end)`.

    Positions may be sent again (a preempted request is computed anew): the last one counts.
    """

    layer: int
    start: int
    end: int
    codec: Codec
    raw_size: int
    """Bytes of the decoded payload."""
    size: int
    """Bytes of the payload that follows."""
    checksum: bytes
    """Of the raw payload, see `protocols.kv_prefill.codec.checksum`."""


class Timings(msgspec.Struct, frozen=True):
    """Where a prefill's time went, in seconds from the engine's receipt of the request."""

    queue_s: float
    compute_s: float
    """From the first step that held the request to the end of the last."""
    encode_s: float
    """Time spent encoding chunks, summed over threads."""
    first_chunk_s: float


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Everything has been sent. The receiver still counts for itself."""

    chunks: int
    raw_bytes: int
    sent_bytes: int
    timings: Timings


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The computation ended early; what was sent before is right and may be used."""

    reason: str
    retryable: bool = True


ClientMessage: TypeAlias = Request
ServerMessage: TypeAlias = Accept | Refuse | Chunk | Done | Failed
