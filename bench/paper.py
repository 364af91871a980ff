"""A hand-off between machines that are not here, worked out from what was measured here.

The case is the one that the prior system has published: a DGX Spark reads 8,192 tokens for a Mac
Studio, which writes 32; Llama-3.1-8B in 16 bits, 10 Gbit ethernet. The engines' times are the
published ones. What the way of the cache takes is worked out chunk by chunk: a chunk is ready when
its layer has been computed, leaves when those before it have left, and is as long on its way as the
slower of link and nodes takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from bench.kv.data import BYTES_PER_TOKEN, LAYOUT, STEP_TOKENS, pieces

__all__ = [
    "MEASURED",
    "PUBLISHED",
    "TEN_GBE",
    "Measured",
    "PaperReport",
    "PaperRow",
    "Published",
    "arrived_after",
    "work_out",
]

TEN_GBE: Final = 1250.0 * 1448 / 1538
"""10^6 bytes a second of TCP payload: 1,448 of the 1,538 bytes that a full frame takes on the wire,
preamble and gap included."""


class Published(msgspec.Struct, frozen=True):
    """What the prior system's authors report; see the module."""

    prefill_s: float = 1.47
    """On the DGX Spark; its own measurement without a hand-off has the same."""
    decode_s: float = 0.85
    """Of all 32 tokens, on the Mac Studio; without a hand-off as well."""
    total_s: float = 2.32
    tokens: int = 8192


PUBLISHED: Final = Published()


class Measured(msgspec.Struct, frozen=True):
    """What was measured on one machine; `docs/performance.md` says how."""

    baton: float
    """MB/s of `/kv-prefill/1` between two processes, raw (`baton bench kv`)."""
    baton_planes: float
    """The same with the codec, in raw bytes."""
    stock_libp2p: float
    planes_ratio: float
    """Raw bytes over bytes sent."""
    rest_s: float
    """From the end of the computation to the first token, less a decode step, end to end with small
    chunks (`baton bench prefill`): the request's way, the last chunk and its injection."""


MEASURED: Final = Measured(
    baton=756.0, baton_planes=571.0, stock_libp2p=169.0, planes_ratio=1.48, rest_s=0.059
)


class PaperRow(msgspec.Struct):
    """One way to move the cache."""

    way: str
    mb_per_s: float
    """Of raw bytes: the least of what the nodes and the link take."""
    transfer_s: float
    """The whole cache's, were it sent at once."""
    exposed_s: float
    """From the end of the computation to the last chunk's arrival."""
    total_s: float
    of_published: float
    """`total_s` over the published total."""
    prefill_to_beat_s: float
    """The computation would have to be shorter than this for the total to be under the published
    one; 0 if the cache takes too long on its way for any."""


class PaperReport(msgspec.Struct):
    """What `baton bench paper --json` prints."""

    published: Published
    measured: Measured
    link_mb_per_s: float
    rows: list[PaperRow]
    mb_per_s_to_hide: float
    """Goodput from which on nothing but the last layer's chunks is left when the computation ends:
    the cache's size over the time from the first layer's end to the last's."""


def arrived_after(prefill_s: float, mb_per_s: float, tokens: int) -> float:
    """Return when the last chunk has arrived, in seconds from the start of the computation.

    Args:
        prefill_s: that the computation takes: every layer of every token the same time.
        mb_per_s: of the way of the cache, in raw bytes.
        tokens: of the prompt.
    """
    layers = len(LAYOUT.layers)
    per_token_and_layer = prefill_s / tokens / layers
    sent = 0.0
    for piece in pieces(tokens):
        step = piece.start // STEP_TOKENS * STEP_TOKENS
        in_step = min(STEP_TOKENS, tokens - step)
        ready = (step * layers + in_step * (piece.layer + 1)) * per_token_and_layer
        size = (piece.end - piece.start) * BYTES_PER_TOKEN / layers
        sent = max(sent, ready) + size / 1e6 / mb_per_s
    return sent


def work_out(
    measured: Measured = MEASURED,
    *,
    published: Published = PUBLISHED,
    link_mb_per_s: float = TEN_GBE,
) -> PaperReport:
    """Work out the case for each way to move the cache.

    Args:
        measured: speeds of nodes.
        published: times of engines.
        link_mb_per_s: what the link carries of TCP payload.
    """
    ways = {
        "baton": min(measured.baton, link_mb_per_s),
        "baton_planes": min(measured.baton_planes, link_mb_per_s * measured.planes_ratio),
        "the link alone": link_mb_per_s,
        "stock_libp2p": min(measured.stock_libp2p, link_mb_per_s),
    }
    nbytes = published.tokens * BYTES_PER_TOKEN
    step = min(STEP_TOKENS, published.tokens)
    first_s = published.prefill_s * step / published.tokens / len(LAYOUT.layers)
    return PaperReport(
        published=published,
        measured=measured,
        link_mb_per_s=link_mb_per_s,
        rows=[_row(way, rate, measured.rest_s, published) for way, rate in ways.items()],
        mb_per_s_to_hide=nbytes / 1e6 / (published.prefill_s - first_s),
    )


def _row(way: str, rate: float, rest_s: float, published: Published) -> PaperRow:
    def total(prefill_s: float) -> float:
        return arrived_after(prefill_s, rate, published.tokens) + rest_s + published.decode_s

    arrived = arrived_after(published.prefill_s, rate, published.tokens)
    return PaperRow(
        way=way,
        mb_per_s=rate,
        transfer_s=published.tokens * BYTES_PER_TOKEN / 1e6 / rate,
        exposed_s=arrived - published.prefill_s,
        total_s=total(published.prefill_s),
        of_published=total(published.prefill_s) / published.total_s,
        prefill_to_beat_s=_longest(total, published.total_s),
    )


def _longest(total: Callable[[float], float], most_s: float) -> float:
    """Return the longest computation whose total is at most `most_s`; totals grow with it."""
    low, high = 0.0, most_s
    if total(low) > most_s:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) <= most_s else (low, middle)
    return low
