"""One model on one engine of this node, kept running."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from textwrap import shorten
from typing import Final

import msgspec
import trio
from loguru import logger

from node.errors import EngineDied, EngineRequestFailed, InstanceNotReady, ModelNotHere
from node.instances.connection import EngineConnection, RequestHandle
from node.instances.process import EngineHandle, engine_command, start_engine
from protocols.chat import Message
from protocols.engine import (
    Capabilities,
    EngineName,
    Failed,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    Tokenize,
    Tokenized,
)
from protocols.gossip import InstanceRecord, InstanceState, Role
from protocols.kv_prefill.messages import unpack_tokens

__all__ = ["Instance", "InstanceSpec"]

FIRST_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0
"""A process that ran this long starts its back-off anew."""

RATE_WEIGHT: Final = 0.3
"""Of a new measurement against the remembered rate."""
MIN_MEASURED_TOKENS: Final = 64
"""Shorter prefills say more about latency than about rate."""

MAX_REASON: Final = 500
"""Characters of what an engine says when it fails that other nodes are told; the log has it all."""


class InstanceSpec(msgspec.Struct, frozen=True):
    """What to load, and on what."""

    model: str
    engine: EngineName
    roles: tuple[Role, ...]
    memory_bytes: int = 0
    max_context: int = 0


class Instance:
    """Supervises an engine process: starts it, loads the model, restarts it with back-off.

    Args:
        spec: what to load.
        base_model: the name that quantizations of the same model share.
        locate: finds the checkpoint, and may take its time; raises `ModelNotHere`.
        on_change: called whenever `record` would say something new.
        on_loading: told the stage of loading and how far it is, from 0 to 1.
        command: returns the command of the engine's process.
        shared_memory: see `start_engine`.
    """

    def __init__(
        self,
        spec: InstanceSpec,
        base_model: str,
        locate: Callable[[], Awaitable[Path]],
        on_change: Callable[[], None],
        on_loading: Callable[[str, float], None],
        command: Callable[[EngineName], list[str]] = engine_command,
        *,
        shared_memory: bool = True,
    ) -> None:
        self.id = f"{spec.engine}-{secrets.token_hex(3)}"
        self.spec = spec
        self.base_model = base_model
        self.state: InstanceState = "loading"
        self.reason = ""
        self.epoch = ""
        self.capabilities: Capabilities | None = None
        self.prefill_rate = 0.0
        self.progress = 0.0
        self.links: tuple[str, ...] = ()
        self._locate = locate
        self._on_change = on_change
        self._on_loading = on_loading
        self._command = command
        self._shared_memory = shared_memory
        self._connection: EngineConnection | None = None
        self._sequence = 0

    @property
    def load(self) -> int:
        """Requests that are open on the engine."""
        return self._connection.requests if self._connection is not None else 0

    @property
    def roles(self) -> tuple[Role, ...]:
        """What this instance does: what it was asked to, as far as the engine can."""
        if self.capabilities is None:
            return self.spec.roles
        can = {"prefill": self.capabilities.can_prefill, "decode": self.capabilities.can_generate}
        return tuple(role for role in self.spec.roles if can[role])

    def record(self) -> InstanceRecord:
        """Return what other nodes are told of this instance."""
        capabilities = self.capabilities
        layout = capabilities.layout if capabilities else None
        return InstanceRecord(
            id=self.id,
            model=self.spec.model,
            base_model=self.base_model,
            engine=self.spec.engine,
            roles=self.roles,
            state=self.state,
            load=self.load,
            max_context=capabilities.max_context if capabilities else 0,
            fingerprint=layout.fingerprint if layout else "",
            prefill_tokens_per_s=self.prefill_rate,
            decode_tokens_per_s=capabilities.decode_tokens_per_s if capabilities else 0.0,
            kv_bytes_per_token=layout.total_nbytes(0, 1024) // 1024 if layout else 0,
            reason=shorten(self.reason, MAX_REASON, placeholder=" ..."),
            progress=self.progress,
            links=self.links,
        )

    def set_link(self, prefill: str, *, linked: bool) -> bool:
        """Let a prefill instance serve this one, or no longer; return whether that is new."""
        if (prefill in self.links) == linked:
            return False
        others = tuple(each for each in self.links if each != prefill)
        self.links = (*others, prefill) if linked else others
        self._on_change()
        return True

    def add_roles(self, roles: tuple[Role, ...]) -> None:
        """Have it do more than it was asked to before."""
        both = tuple(dict.fromkeys((*self.spec.roles, *roles)))
        if both != self.spec.roles:
            self.spec = msgspec.structs.replace(self.spec, roles=both)
            self._on_change()

    def retire(self) -> None:
        """Take no more requests, and let the open ones fail. Whoever runs it ends the process."""
        self.state, self.reason = "failed", "it was removed"
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(f"the instance {self.id} of {self.spec.model} was removed")

    def request(self, request: str) -> RequestHandle:
        """Return a handle, to be entered with `async with`, for one request to the engine.

        Args:
            request: names the request in the log; made unique here.

        Raises:
            InstanceNotReady: the model is not loaded (yet, or any more).
        """
        connection = self._connection
        if self.state != "ready" or connection is None or not connection.alive:
            detail = f": {self.reason}" if self.reason else ""
            raise InstanceNotReady(f"{self.spec.model} on {self.id} is {self.state}{detail}")
        self._sequence += 1
        return connection.open(f"{request}#{self._sequence}")

    async def tokenize(self, request: str, messages: tuple[Message, ...]) -> list[int]:
        """Apply the chat template and return token ids.

        Raises:
            InstanceNotReady: the model is not loaded.
            EngineRequestFailed: the messages do not fit the template.
            EngineDied: the engine process died.
        """
        async with self.request(request) as handle:
            await handle.send(Tokenize(request=handle.id, messages=messages))
            message = (await handle.receive()).message
            if isinstance(message, Failed):
                raise EngineRequestFailed(message.code, message.reason)
            if not isinstance(message, Tokenized):
                raise EngineDied(f"the engine answered Tokenize with {message}")
            return unpack_tokens(message.tokens)

    def measured_prefill(self, tokens: int, seconds: float) -> None:
        """Refine the prefill rate by what a request took."""
        if tokens < MIN_MEASURED_TOKENS or seconds <= 0:
            return
        rate = tokens / seconds
        self.prefill_rate += RATE_WEIGHT * (rate - self.prefill_rate) if self.prefill_rate else rate

    async def run(self) -> None:
        """Keep the engine running until cancelled; return only when it can never load."""
        try:
            path = await self._locate()
        except ModelNotHere as error:
            logger.error("{}: {}", self.id, error)
            self._enter("failed", str(error))
            return
        backoff = FIRST_BACKOFF_S
        while True:
            began = trio.current_time()
            async with start_engine(
                self._command(self.spec.engine), self.id, shared_memory=self._shared_memory
            ) as engine:
                if not await self._load(engine, path):
                    return
                await engine.process.wait()
                # What the process said before it died explains it.
                with trio.move_on_after(1):
                    await trio.sleep(0.1)
            self._connection = None
            if trio.current_time() - began > HEALTHY_AFTER_S:
                backoff = FIRST_BACKOFF_S
            logger.error("{}: {}; restarting in {} s", self.id, engine.epitaph(), backoff)
            self._enter("restarting", engine.epitaph())
            await trio.sleep(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF_S)

    async def _load(self, engine: EngineHandle, path: Path) -> bool:
        """Load the model; return whether it makes sense to go on with this instance."""
        connection = engine.connection
        spec = self.spec
        try:
            await connection.send(
                Load(
                    model=spec.model,
                    path=str(path),
                    memory_bytes=spec.memory_bytes,
                    max_context=spec.max_context,
                )
            )
        except EngineDied:
            return True
        async for message in connection.load_messages:
            match message:
                case Loading():
                    self.progress = message.fraction
                    self._on_loading(message.stage, message.fraction)
                case LoadFailed():
                    logger.error("{} cannot load {}: {}", self.id, spec.model, message.reason)
                    self._on_loading("failed", 1.0)
                    self._enter("failed", message.reason)
                    return False
                case Loaded():
                    self._connection = connection
                    self.epoch, self.capabilities = message.epoch, message.capabilities
                    self.prefill_rate = message.capabilities.prefill_tokens_per_s
                    if not self._check_roles(message.capabilities):
                        return False
                    self._enter("ready", "")
                    logger.info(
                        "{} is ready on {} ({}): prefill {:.0f}, decode {:.0f} tokens/s",
                        spec.model,
                        self.id,
                        message.capabilities.device,
                        message.capabilities.prefill_tokens_per_s,
                        message.capabilities.decode_tokens_per_s,
                    )
                    return True
        return True

    def _check_roles(self, capabilities: Capabilities) -> bool:
        """Tell the user what the engine cannot do with this model; return whether it is of use."""
        model, obstacle = self.spec.model, capabilities.obstacle
        if self.roles:
            if obstacle:
                logger.warning(
                    "{} on {} is prefilled where it is decoded, its caches are not handed over: {}",
                    model,
                    self.id,
                    obstacle,
                )
            return True
        reason = f"{self.spec.engine} cannot {' or '.join(self.spec.roles)} {model}: {obstacle}"
        logger.error("{}: {}", self.id, reason)
        self._connection = self.capabilities = None
        self._enter("failed", reason)
        return False

    def _enter(self, state: InstanceState, reason: str) -> None:
        self.state, self.reason, self.progress = state, reason, 0.0
        self._on_change()
