"""What must hold between a request, the layout that was agreed on, and each chunk.

Types and signs are checked when a message is decoded (see the constraints in `messages` and
`protocols.cache`); here is what takes more than one message to see.
"""

from __future__ import annotations

import math

from protocols.cache import CacheLayout
from protocols.errors import LayoutMismatch, LimitExceeded, Malformed
from protocols.framing import MAX_PAYLOAD
from protocols.kv_prefill.messages import CHECKSUM_SIZE, Accept, Chunk, Request, hash_tokens

__all__ = ["check_accept", "check_chunk", "check_request", "check_within", "layout_difference"]

_TOKEN_SIZE = 4


def check_request(request: Request) -> None:
    """Check that a request's tokens are what was sent, and that its range lies in them.

    Raises:
        Malformed: it cannot be answered by anybody.
    """
    tokens, odd = divmod(len(request.tokens), _TOKEN_SIZE)
    if odd:
        raise Malformed(f"{len(request.tokens)} bytes are no whole number of 32-bit token ids")
    if hash_tokens(request.tokens) != request.tokens_hash:
        raise Malformed("the hash of the tokens is not the one that was sent with them")
    if not 0 <= request.start < request.end <= tokens:
        raise Malformed(f"the range [{request.start}, {request.end}) of {tokens} tokens")
    if request.deadline_ms <= 0:
        raise Malformed(f"a deadline of {request.deadline_ms} ms")


def check_accept(accept: Accept, request: Request, layout: CacheLayout) -> None:
    """Check that what a server offers is what was asked for.

    Args:
        accept: the server's answer.
        request: what it answers.
        layout: the receiver's own; its dtype need not be the server's.

    Raises:
        LayoutMismatch: the server's cache does not fit ours; the message says where.
        Malformed: the answer is none to this request.
    """
    difference = layout_difference(layout, accept.layout)
    if difference is not None:
        raise LayoutMismatch(difference)
    if accept.layout.dtype not in request.dtypes:
        raise Malformed(f"a cache of {accept.layout.dtype}, offered {', '.join(request.dtypes)}")
    if accept.codec != "raw" and accept.codec not in request.codecs:
        raise Malformed(f"the codec {accept.codec}, offered {', '.join(request.codecs)}")
    if accept.cached > request.end:
        raise Malformed(f"{accept.cached} tokens cached of {request.end}")
    if not math.isfinite(accept.tokens_per_s):
        raise Malformed(f"a rate of {accept.tokens_per_s} tokens/s")


def check_chunk(chunk: Chunk, layout: CacheLayout) -> None:
    """Check a chunk's header against the layout, so that its sizes can be relied on.

    Raises:
        Malformed: there is no such layer or range, or the sizes are not those of the layout.
        LimitExceeded: the payload is larger than what it encodes, or than any may be.
    """
    if not 0 <= chunk.layer < len(layout.layers):
        raise Malformed(f"a chunk of layer {chunk.layer}, of {len(layout.layers)} layers")
    if not 0 <= chunk.start < chunk.end:
        raise Malformed(f"a chunk of the range [{chunk.start}, {chunk.end})")
    raw_size = layout.nbytes(chunk.layer, chunk.end - chunk.start)
    if chunk.raw_size != raw_size:
        raise Malformed(
            f"{chunk.raw_size} raw bytes for [{chunk.start}, {chunk.end}) of layer {chunk.layer}, "
            f"where the layout has {raw_size}"
        )
    if max(raw_size, chunk.size) > MAX_PAYLOAD:
        raise LimitExceeded(f"a chunk of {raw_size} bytes raw, {chunk.size} sent")
    if chunk.size > raw_size:
        raise LimitExceeded(f"a payload of {chunk.size} bytes that encodes {raw_size}")
    if chunk.codec == "raw" and chunk.size != raw_size:
        raise Malformed(f"a raw payload of {chunk.size} bytes, where the layout has {raw_size}")
    if len(chunk.checksum) != CHECKSUM_SIZE:
        raise Malformed(f"a checksum of {len(chunk.checksum)} bytes")


def check_within(chunk: Chunk, start: int, end: int) -> None:
    """Check that a chunk's tokens were asked for.

    Raises:
        Malformed: some lie outside `[start, end)`.
    """
    if not start <= chunk.start < chunk.end <= end:
        raise Malformed(
            f"a chunk of [{chunk.start}, {chunk.end}), where [{start}, {end}) was asked for"
        )


def layout_difference(ours: CacheLayout, theirs: CacheLayout) -> str | None:
    """Say why caches of the two layouts are not interchangeable, or `None` if they are.

    The dtype is left aside: it is negotiated.
    """
    if len(ours.layers) != len(theirs.layers):
        return f"{len(theirs.layers)} layers where ours has {len(ours.layers)}"
    for index, (our, their) in enumerate(zip(ours.layers, theirs.layers, strict=True)):
        if our != their:
            return f"layer {index} is {their} where ours is {our}"
    if ours.fingerprint != theirs.fingerprint:
        return f"the fingerprint is {theirs.fingerprint} where ours is {ours.fingerprint}"
    return None
