"""A node that answers as it is told, in place of the real one behind the HTTP API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec
import trio

from node.http.backend import (
    Created,
    CreateInstance,
    HealthInfo,
    InstanceInfo,
    LinkInfo,
    MeasureReport,
    MeasureRequest,
    ModelInfo,
    RequestFailed,
)
from protocols.chat import (
    ChatDelta,
    ChatEvent,
    ChatFailed,
    ChatFinished,
    ChatRequest,
    ChatStarted,
    PrefillReport,
    TokenCounts,
)

MODEL = "org/tiny"

REPORT = PrefillReport(
    prefill="remote",
    reason="faster",
    prefill_node="peer-b",
    tokens=TokenCounts(prompt=100, cached_local=16, cached_remote=32, computed=52),
    bytes=4096,
    raw_bytes=6000,
    route="ethernet eth0 to 192.0.2.2",
    ttft_ms=12.5,
    transfer_ms=8.0,
    hidden_ms=6.0,
    codec="planes",
    prefill_ms=9.0,
)
FINISHED = ChatFinished(reason="stop", prompt_tokens=100, completion_tokens=3, report=REPORT)
NOT_FOUND = ChatFailed(
    status=404,
    kind="not_found_error",
    message="There is no model `nope`.",
    code="model_not_found",
    param="model",
)

INSTANCES = (
    InstanceInfo("mlx-1", "peer-a", "den", MODEL, "org/base", "mlx", "decode", "ready"),
    InstanceInfo("vllm-1", "peer-b", "box", MODEL, "org/base", "vllm", "prefill", "loading", 0.5),
)

Script: TypeAlias = Callable[[ChatRequest], AsyncIterator[ChatEvent]]


async def answer(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """Answer with "Hé 🙂!" in pieces of which one is empty."""
    yield ChatStarted(prompt_tokens=100)
    for text in ("Hé", "", " 🙂!"):
        yield ChatDelta(text, tokens=1)
    yield FINISHED


def events(*given: ChatEvent) -> Script:
    """Return a script that plays the given events."""

    async def script(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for event in given:
            yield event

    return script


def stalls_after(*given: ChatEvent) -> Script:
    """Return a script that plays the given events and then says nothing for ever."""

    async def script(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for event in given:
            yield event
        await trio.sleep_forever()

    return script


class FakeBackend:
    """Plays a script for each request, in a nursery as the real node does."""

    def __init__(self, script: Script = answer, cluster: msgspec.Struct | bytes = b"{}") -> None:
        self.script = script
        self.document = cluster
        self.requests: list[ChatRequest] = []
        self.measured: list[MeasureRequest] = []
        self.opened = trio.Event()
        self.left = trio.Event()
        self.status: HealthInfo = HealthInfo("ok", (MODEL,), "peer-a")
        self.measure_stalls = False
        self.created: list[CreateInstance] = []
        self.made: list[LinkInfo] = []
        self.failure: ChatFailed | None = None

    def models(self) -> Sequence[ModelInfo]:
        return (
            ModelInfo(id=MODEL, base_model="org/base", ready=True, created=1_700_000_000),
            ModelInfo(id="org/other", base_model="org/other", ready=False, created=1_700_000_001),
            ModelInfo("org/on-disk", "org/on-disk", False, 1_700_000_002, loaded=False),
        )

    def instances(self) -> Sequence[InstanceInfo]:
        return INSTANCES

    async def create_instance(self, wanted: CreateInstance) -> Created:
        self._fail()
        self.created.append(wanted)
        return Created(INSTANCES, new=len(self.created) == 1)

    async def delete_instance(self, instance_id: str) -> None:
        self._fail()

    def links(self) -> Sequence[LinkInfo]:
        return self.made

    async def create_link(self, prefill: str, decode: str) -> LinkInfo:
        self._fail()
        self.made.append(LinkInfo(prefill, decode, ready=True))
        return self.made[-1]

    async def delete_link(self, prefill: str, decode: str) -> None:
        self._fail()
        self.made.clear()

    def _fail(self) -> None:
        """Fail a change, if the test wants that."""
        if self.failure is not None:
            raise RequestFailed(self.failure)

    @asynccontextmanager
    async def open_chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ChatEvent]]:
        self.requests.append(request)
        if request.model == "refused":
            raise RequestFailed(NOT_FOUND)
        send, receive = trio.open_memory_channel[ChatEvent](0)

        async def play() -> None:
            async with send:
                async for event in self.script(request):
                    await send.send(event)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(play)
                self.opened.set()
                async with receive:
                    yield receive
                nursery.cancel_scope.cancel()
        finally:
            self.left.set()

    async def cluster(self) -> msgspec.Struct | bytes:
        return self.document

    def health(self) -> HealthInfo:
        return self.status

    async def measure_prefill(self, request: MeasureRequest) -> MeasureReport:
        self.measured.append(request)
        if request.model == "refused":
            raise RequestFailed(NOT_FOUND)
        try:
            if self.measure_stalls:
                self.opened.set()
                await trio.sleep_forever()
            return MeasureReport(request.model, 100, "vllm", 0.25, "peer-b")
        finally:
            self.left.set()
