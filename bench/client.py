"""A client of the HTTP API that keeps the time."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import Final

import httpx
import msgspec

__all__ = ["BenchError", "Report", "TimedAnswer", "measure_engine", "timed_chat"]

TIMEOUT: Final = httpx.Timeout(600.0, connect=10.0)


class BenchError(Exception):
    """The node answered with an error."""


class _Delta(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class Tokens(msgspec.Struct):
    """The prompt's tokens by where their cache came from."""

    prompt: int
    cached_local: int
    cached_remote: int
    computed: int


class Report(msgspec.Struct):
    """`x_baton`, as far as it is measured here."""

    prefill: str
    reason: str
    tokens: Tokens
    bytes: int
    raw_bytes: int
    ttft_ms: float
    prefill_ms: float
    transfer_ms: float
    hidden_ms: float
    codec: str | None = None
    route: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    x_baton: Report | None = None
    error: dict[str, object] | None = None


class TimedAnswer(msgspec.Struct):
    """A streamed answer."""

    text: str
    ttft_s: float
    """From sending the request to the first text."""
    total_s: float
    step_s: float | None
    """Median time from one piece of text to the next: that of a decode step; None if there was one
    piece."""
    report: Report


class _Measured(msgspec.Struct):
    prompt_tokens: int
    prefill_s: float


def timed_chat(
    api: str, model: str, content: str, *, prefill: str = "auto", max_tokens: int = 48
) -> TimedAnswer:
    """Ask for a greedy answer to one user message.

    Args:
        api: host:port of a node.
        model: which model.
        content: the message.
        prefill: "auto", "local" or "remote".
        max_tokens: of the answer.

    Raises:
        BenchError: the node answered with an error, or the stream broke off.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "stream": True,
        "temperature": 0,
        "max_tokens": max_tokens,
        "x_baton": {"prefill": prefill},
    }
    began = time.perf_counter()
    arrived: list[float] = []
    text: list[str] = []
    report: Report | None = None
    url = f"http://{api}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=TIMEOUT) as response:
        if response.status_code != 200:
            raise BenchError(response.read().decode(errors="replace"))
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = msgspec.json.decode(line[len("data: ") :], type=_Event)
            if event.error is not None:
                raise BenchError(str(event.error.get("message")))
            piece = "".join(choice.delta.content for choice in event.choices)
            if piece:
                arrived.append(time.perf_counter())
            text.append(piece)
            report = event.x_baton or report
    if not arrived or report is None:
        raise BenchError("the answer ended before it was complete")
    ended = time.perf_counter()
    steps = [after - before for before, after in pairwise(arrived)]
    return TimedAnswer(
        text="".join(text),
        ttft_s=arrived[0] - began,
        total_s=ended - began,
        step_s=median(steps) if steps else None,
        report=report,
    )


def measure_engine(api: str, model: str, content: str) -> tuple[int, float]:
    """Return the tokens of the prompt, and the seconds the node's prefill engine alone needs.

    Raises:
        BenchError: the node has no such engine, or the engine failed.
    """
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    response = httpx.post(f"http://{api}/v1/prefill/measure", json=body, timeout=TIMEOUT)
    if response.status_code != 200:
        raise BenchError(response.text)
    measured = msgspec.json.decode(response.content, type=_Measured)
    return measured.prompt_tokens, measured.prefill_s
