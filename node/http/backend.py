"""What the HTTP API needs of the node: the seam that the node implements and tests fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias

import msgspec

from protocols.chat import ChatEvent, ChatFailed, ChatRequest, Message
from protocols.engine import EngineName
from protocols.gossip import InstanceState
from protocols.placement import RoleWish

__all__ = [
    "Backend",
    "CreateInstance",
    "Created",
    "HealthInfo",
    "HealthStatus",
    "InstanceInfo",
    "LinkInfo",
    "MeasureReport",
    "MeasureRequest",
    "ModelInfo",
    "RequestFailed",
]

HealthStatus: TypeAlias = Literal["ok", "starting", "degraded"]


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that the cluster has an instance of, or could load for a request."""

    id: str
    base_model: str
    ready: bool
    """Some decode instance of it can take requests now."""
    created: int
    """Unix seconds at which this node first saw it."""
    loaded: bool = True
    """False for one that is on a disk only: the first request for it has it loaded."""


class InstanceInfo(msgspec.Struct, frozen=True):
    """An instance of the cluster's."""

    id: str
    node: str
    """Peer id."""
    host: str
    model: str
    base_model: str
    engine: EngineName
    role: RoleWish
    state: InstanceState
    progress: float = 0.0
    """How far loading is, from 0 to 1."""
    load: int = 0
    """Requests that it works on."""
    reason: str = ""
    """Why it is not ready."""
    links: tuple[str, ...] = ()
    """The only instances that may prefill for it; none for any."""


class LinkInfo(msgspec.Struct, frozen=True):
    """A link that a user made: an instance that is to prefill for another."""

    prefill: str
    decode: str
    ready: bool
    """Both are there and ready."""


class CreateInstance(msgspec.Struct, frozen=True):
    """Which model to load, and as far as the user cares, where and for what."""

    model: str
    node: str = ""
    """Peer id."""
    engine: EngineName | None = None
    role: RoleWish | None = None


class Created(msgspec.Struct, frozen=True):
    """The instances that serve the model now, the one that was asked for first."""

    instances: tuple[InstanceInfo, ...]
    new: bool
    """Whether any of them was not there before."""


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
        """Return every model that is loaded, ready or not, and every one that could be."""
        ...

    def instances(self) -> Sequence[InstanceInfo]:
        """Return the instances of every node that is there."""
        ...

    async def create_instance(self, wanted: CreateInstance) -> Created:
        """Have a model loaded; returns as soon as its instances exist. Goes on if cancelled.

        Raises:
            RequestFailed: it cannot be, with what could be done.
        """
        ...

    async def delete_instance(self, instance_id: str) -> None:
        """End an instance, on whatever node. Goes on if cancelled.

        Raises:
            RequestFailed: there is none of that id, or its node cannot be reached.
        """
        ...

    def links(self) -> Sequence[LinkInfo]:
        """Return the links that users have made."""
        ...

    async def create_link(self, prefill: str, decode: str) -> LinkInfo:
        """Let an instance prefill for another, and none but those that are linked to it.

        Raises:
            RequestFailed: there is no such instance, or they do not fit each other.
        """
        ...

    async def delete_link(self, prefill: str, decode: str) -> None:
        """Take a link back.

        Raises:
            RequestFailed: there is no such link.
        """
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
