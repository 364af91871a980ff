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
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from protocols.cache import CacheLayout, DType

__all__ = [
    "CHECKSUM_SIZE",
    "PROTOCOL_ID",
    "TOKENS_HASH_SIZE",
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

CHECKSUM_SIZE: Final = 8
"""Bytes of a chunk's checksum."""
TOKENS_HASH_SIZE: Final = 16
"""Bytes of the hash of a prompt."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Identifier: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Rate: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]

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
    """Return the BLAKE2b digest of packed token ids, `TOKENS_HASH_SIZE` bytes."""
    return hashlib.blake2b(packed, digest_size=TOKENS_HASH_SIZE).digest()


class Request(msgspec.Struct, frozen=True, tag="request"):
    """Asks for the cache of `tokens[start:end]`, computed with `tokens[:start]` before it.

    `0 <= start < end <= len(tokens)`; tokens from `end` on are allowed, and do not matter.
    """

    id: Identifier
    model: Identifier
    fingerprint: Identifier
    tokens: bytes
    """See `pack_tokens`."""
    tokens_hash: Annotated[
        bytes, msgspec.Meta(min_length=TOKENS_HASH_SIZE, max_length=TOKENS_HASH_SIZE)
    ]
    start: Count
    end: Count
    dtypes: Annotated[tuple[DType, ...], msgspec.Meta(min_length=1)]
    """Those of a cache that the client can use, the best first."""
    codecs: Annotated[tuple[Codec, ...], msgspec.Meta(min_length=1)]
    """Those the client can decode, the best first; `raw` it can, named or not."""
    deadline_ms: Annotated[int, msgspec.Meta(gt=0)]
    """From the server's receipt of the request; after it nobody waits for the cache."""


class Accept(msgspec.Struct, frozen=True, tag="accept"):
    """The request is being computed."""

    layout: CacheLayout
    epoch: Identifier
    """Names the engine process; a new process is a new epoch."""
    cached: Count
    """Tokens of `[0, end)` that the prefill engine's own prefix cache held."""
    codec: Codec
    """What the chunks will be encoded with; `raw` ones may be among them."""
    tokens_per_s: Rate
    """Expected prefill rate; 0 when nothing has been measured yet."""


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """The request is not going to be computed; nothing follows."""

    code: RefuseCode
    reason: str
    retryable: bool = False
    retry_after_ms: Count = 0


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """Heads the payload of one layer's cache for tokens `[start, end)`.

    Positions may be sent again (a preempted request is computed anew): the last one counts.
    """

    layer: Count
    start: Count
    end: Count
    codec: Codec
    raw_size: Count
    """Bytes of the decoded payload."""
    size: Count
    """Bytes of the payload that follows."""
    checksum: Annotated[bytes, msgspec.Meta(min_length=CHECKSUM_SIZE, max_length=CHECKSUM_SIZE)]
    """Of the raw payload, see `protocols.kv_prefill.codec.checksum`."""


class Timings(msgspec.Struct, frozen=True):
    """Where a prefill's time went, in seconds."""

    queue_s: float
    """From the engine's receipt of the request to the first step that held it."""
    compute_s: float
    """From the first step that held the request to the end of the last."""
    encode_s: float
    """Time spent encoding chunks, summed over threads."""
    first_chunk_s: float
    """From the engine's receipt of the request until its first chunk was ready."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Everything has been sent. The receiver still counts for itself."""

    chunks: Count
    raw_bytes: Count
    sent_bytes: Count
    timings: Timings


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The computation ended early; what was sent before is right and may be used."""

    reason: str
    retryable: bool = True


ClientMessage: TypeAlias = Request
ServerMessage: TypeAlias = Accept | Refuse | Chunk | Done | Failed
