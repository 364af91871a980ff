"""`/baton-chat/1`: a request for an answer, sent by the node it arrived at to the one that decodes.

    ingress                         decode node
    ChatRequest             ->
                            <-      ChatStarted, then ChatProgress while the prompt is read,
                                    ChatDelta repeated, ChatFinished; or ChatFailed at any point

Closing the stream cancels the request. The messages are also what the HTTP API talks in, whether
the decode engine is in this node or in another.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "PROTOCOL_ID",
    "ChatDelta",
    "ChatEvent",
    "ChatFailed",
    "ChatFinished",
    "ChatLoading",
    "ChatProgress",
    "ChatRequest",
    "ChatStarted",
    "ErrorType",
    "Message",
    "PrefillPolicy",
    "PrefillReport",
    "Role",
    "Sampling",
    "TokenCounts",
]

PROTOCOL_ID = "/baton-chat/1"

Role: TypeAlias = Literal["system", "developer", "user", "assistant"]
PrefillPolicy: TypeAlias = Literal["auto", "local", "remote"]
ErrorType: TypeAlias = Literal[
    "invalid_request_error", "not_found_error", "server_error", "unavailable_error"
]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Role
    content: str


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    max_tokens: int = 0
    """0: as many as the context has room for."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class ChatRequest(msgspec.Struct, frozen=True, tag="request"):
    """Write the next message of a conversation."""

    id: str
    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    prefill: PrefillPolicy = "auto"


class TokenCounts(msgspec.Struct, frozen=True):
    """Where the prompt's cache came from: `prompt` is the sum of the others."""

    prompt: int
    cached_local: int
    cached_remote: int
    computed: int
    """Computed for this request, on whichever engine did the prefill."""


class PrefillReport(msgspec.Struct, frozen=True):
    """What was done to read the prompt, and why. The API shows it as `x_baton`."""

    prefill: Literal["remote", "local"]
    reason: str
    prefill_node: str | None
    tokens: TokenCounts
    bytes: int
    """Sent over the route, encoded."""
    raw_bytes: int
    """The same before encoding."""
    route: str | None
    ttft_ms: float
    """From the decode node's receipt of the request to its first token."""
    transfer_ms: float
    """From the first chunk's arrival to the last one's."""
    hidden_ms: float
    """The part of it during which the prefill engine was still computing."""
    codec: str | None = None
    prefill_ms: float = 0.0
    """Compute time of the engine that did the prefill."""


class ChatStarted(msgspec.Struct, frozen=True, tag="started"):
    """The request is valid and a decode engine has it."""

    prompt_tokens: int


class ChatLoading(msgspec.Struct, frozen=True, tag="loading"):
    """The model is being loaded for this request; comes from the node that the request is at."""

    model: str
    """As it is called where it is loaded."""
    host: str
    engine: str
    fraction: float
    """From 0 to 1."""


class ChatProgress(msgspec.Struct, frozen=True, tag="progress"):
    """How much of the prompt has been read, here or elsewhere, in tokens."""

    done: int
    total: int


class ChatDelta(msgspec.Struct, frozen=True, tag="delta"):
    """More of the answer."""

    text: str
    tokens: int


class ChatFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The end of an answer."""

    reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    report: PrefillReport


class ChatFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The end of a request that got no answer, or only a part of one."""

    status: int
    """The HTTP status that says it."""
    kind: ErrorType
    message: str
    code: str | None = None
    param: str | None = None


ChatEvent: TypeAlias = (
    ChatStarted | ChatLoading | ChatProgress | ChatDelta | ChatFinished | ChatFailed
)
