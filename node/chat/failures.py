"""What goes wrong with a request, as the event that says so to the client."""

from __future__ import annotations

from typing import Final

from node.errors import BatonError, EngineRequestFailed
from protocols.chat import ChatFailed
from protocols.placement import RefusalCode, Refused

__all__ = ["failure_of", "model_not_found", "refusal", "unavailable"]

_STATUS: Final[dict[RefusalCode, int]] = {
    "unknown_node": 404,
    "unknown_instance": 404,
    "unknown_link": 404,
    "not_on_disk": 404,
    "incompatible": 404,
    "role": 404,
    "mismatch": 409,
}
"""The others may work in a while: 503."""


def unavailable(message: str) -> ChatFailed:
    """Say that it may work in a while."""
    return ChatFailed(status=503, kind="unavailable_error", message=message, code="unavailable")


def model_not_found(model: str, known: list[str], refused: Refused) -> ChatFailed:
    """Say that no node has the model, which ones there are, and what could be done."""
    there = f"It has: {', '.join(known)}." if known else "It has none, on no disk."
    return ChatFailed(
        status=404,
        kind="not_found_error",
        message=f"The model {model!r} does not exist in this cluster. {there} "
        f"What could be done: {_sentence(refused.remedy)}",
        code="model_not_found",
        param="model",
    )


def refusal(refused: Refused, param: str | None = "model") -> ChatFailed:
    """Say why the master, or a node, did not do what was asked for."""
    text = _sentence(refused.reason)
    if refused.remedy:
        text += f" What could be done: {_sentence(refused.remedy)}"
    status = _STATUS.get(refused.code, 503)
    if status == 503:
        return unavailable(text)
    return ChatFailed(
        status=status,
        kind="not_found_error" if status == 404 else "invalid_request_error",
        message=text,
        code="model_not_found" if refused.code == "not_on_disk" else refused.code,
        param=param,
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if not text.endswith(".") else text


def failure_of(error: BatonError) -> ChatFailed:
    """Turn an error of the node into what the client is told."""
    if not isinstance(error, EngineRequestFailed):
        return unavailable(f"The engine is not available: {error}. Try again in a few seconds.")
    if error.code in ("bad_request", "too_long", "unsupported"):
        return ChatFailed(
            status=400,
            kind="invalid_request_error",
            message=str(error),
            code="context_length_exceeded" if error.code == "too_long" else None,
            param="messages",
        )
    if error.code == "out_of_memory":
        return unavailable(f"The engine is out of memory: {error}")
    return ChatFailed(status=500, kind="server_error", message=str(error))
