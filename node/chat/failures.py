"""What goes wrong with a request, as the event that says so to the client."""

from __future__ import annotations

from node.errors import BatonError, EngineRequestFailed
from protocols.chat import ChatFailed

__all__ = ["failure_of", "model_not_found", "unavailable"]


def unavailable(message: str) -> ChatFailed:
    """Say that it may work in a while."""
    return ChatFailed(status=503, kind="unavailable_error", message=message, code="unavailable")


def model_not_found(model: str, known: list[str]) -> ChatFailed:
    """Say that nobody in the cluster has the model, and which ones there are."""
    there = f"It has: {', '.join(known)}." if known else "No model is loaded on any node."
    return ChatFailed(
        status=404,
        kind="not_found_error",
        message=f"The model {model!r} does not exist in this cluster. {there}",
        code="model_not_found",
        param="model",
    )


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
