"""What the HTTP API needs of the node: the seam that the node implements and tests fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias

import msgspec

from protocols.chat import ChatEvent, ChatFailed, ChatRequest, Message

__all__ = [
    "Backend",
    "HealthInfo",
    "HealthStatus",
    "MeasureReport",
    "MeasureRequest",
    "ModelInfo",
    "RequestFailed",
]

HealthStatus: TypeAlias = Literal["ok", "starting", "degraded"]


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that the cluster has an instance of."""

    id: str
    base_model: str
    ready: bool
    """Some decode instance of it can take requests now."""
    created: int
    """Unix seconds at which this node first saw it."""


class HealthInfo(msgspec.Struct, frozen=True):
    """How the node is: `degraded` answers requests, but something of it has failed."""

    status: HealthStatus
    models: tuple[str, ...]
    """The models that are ready."""
    peer_id: str


class MeasureRequest(msgspec.Struct, frozen=True):
    """Compute the prompt's cache on a prefill engine and throw it away."""

    id: str
    model: str
    messages: tuple[Message, ...]


class MeasureReport(msgspec.Struct, frozen=True):
    """What the prefill engine alone needed: nothing delivered, no prefix cache read."""

    model: str
    prompt_tokens: int
    engine: str
    prefill_s: float
    node: str
    """Peer id of the node whose engine it was."""


class RequestFailed(Exception):
    """A request that failed before it could answer with events."""

    def __init__(self, failure: ChatFailed) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Backend(Protocol):
    """The node, as the HTTP API sees it."""

    def models(self) -> Sequence[ModelInfo]:
        """Return every model that the cluster has an instance of, ready or not."""
        ...

    def open_chat(
        self, request: ChatRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
        """Start a request and iterate over its events, up to the terminal one.

        Leaving the context cancels the request everywhere, unless it has ended.

        Raises:
            RequestFailed: it cannot be started. A `ChatFailed` event says the same.
        """
        ...

    async def cluster(self) -> msgspec.Struct | bytes:
        """Return the document of `/v1/cluster`, as a struct or as encoded JSON, in a second."""
        ...

    def health(self) -> HealthInfo:
        """Return how the node is."""
        ...

    async def measure_prefill(self, request: MeasureRequest) -> MeasureReport:
        """Measure this node's prefill engine. Cancelling the call cancels the computation.

        Raises:
            RequestFailed: there is no such model or engine, or the engine failed.
        """
        ...
