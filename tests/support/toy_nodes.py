"""Whole nodes in this process, on the loopback interface, with engines that run a toy model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from node.backend import NodeBackend
from node.cluster import Cluster, ClusterOptions
from node.config import NodeConfig
from node.identity import open_identity
from node.instances.instance import Instance, InstanceSpec
from node.instances.manager import InstanceManager
from node.models import ModelStore
from node.placement.orders import OrderTaker
from node.services import connect
from protocols.chat import (
    ChatDelta,
    ChatFailed,
    ChatFinished,
    ChatProgress,
    ChatRequest,
    Message,
    PrefillPolicy,
    Sampling,
)
from protocols.gossip import Role
from tests.support import toy_engine

MODEL = "toy"
CLUSTER = f"toys-{os.getpid()}"
"""Of this run of the tests: another on this machine has its own."""


@dataclass
class Answer:
    """The events of a request, put together."""

    text: str
    finished: ChatFinished | None
    failed: ChatFailed | None


@dataclass
class ToyNode:
    """A node of this process."""

    cluster: Cluster
    instances: InstanceManager
    backend: NodeBackend
    orders: OrderTaker
    store: ModelStore

    @property
    def peer_id(self) -> str:
        return self.cluster.peer_id

    @property
    def instance(self) -> Instance:
        return next(iter(self.instances))

    @property
    def load(self) -> int:
        return sum(instance.load for instance in self.instances)

    def knows(self, other: ToyNode) -> bool:
        """Whether this node's view has the instances of another as they are now."""
        member = self.cluster.view.get(other.peer_id)
        return member is not None and member.record.instances == other.instances.records()

    def request(
        self, prompt: str, *, prefill: PrefillPolicy = "auto", model: str = MODEL
    ) -> ChatRequest:
        message = Message(role="user", content=prompt)
        sampling = Sampling(temperature=0)
        return ChatRequest("r", model, (message,), sampling, prefill)

    async def ask(
        self,
        prompt: str,
        *,
        prefill: PrefillPolicy = "auto",
        model: str = MODEL,
        on_progress: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Ask, and call `on_progress` whenever more of the prompt has been read."""
        answer = Answer("", None, None)
        request = self.request(prompt, prefill=prefill, model=model)
        async with self.backend.open_chat(request) as events:
            async for event in events:
                if isinstance(event, ChatProgress):
                    on_progress()
                elif isinstance(event, ChatDelta):
                    answer.text += event.text
                elif isinstance(event, ChatFinished):
                    answer.finished = event
                elif isinstance(event, ChatFailed):
                    answer.failed = event
        return answer

    async def wait_for_master(self) -> str:
        """Wait until there is a master, and return its peer id."""
        with trio.fail_after(20):
            await self.cluster.wait_until(lambda each: each.master is not None)
        assert self.cluster.master is not None
        return self.cluster.master[0]


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until a condition holds that no event tells of."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 (see above)
            await trio.sleep(0.01)


@asynccontextmanager
async def toy_node(
    directory: Path,
    roles: tuple[Role, ...],
    *engine_options: str,
    overlap: bool = True,
    floor: int = 64,
    cluster: str = CLUSTER,
    on_disk: tuple[str, ...] = (),
    loaded: bool = True,
) -> AsyncIterator[ToyNode]:
    """Run a node; one without roles has no engine.

    Args:
        directory: for its data.
        roles: what it may do.
        engine_options: of `tests.support.toy_engine`.
        overlap: see `NodeConfig`.
        floor: see `NodeConfig.remote_prefill_min_tokens`.
        cluster: its name.
        on_disk: names of the models that it could load.
        loaded: whether it has an instance of `MODEL` from the start.
    """
    store = ModelStore(directory / "models")
    for name in on_disk:
        make_checkpoint(store.root / name)
    config = NodeConfig(
        data_dir=directory,
        models_dir=store.root,
        interfaces=("lo",),
        cluster=cluster,
        overlap=overlap,
        remote_prefill_min_tokens=floor,
    )
    options = ClusterOptions(
        cluster=cluster,
        interfaces=("lo",),
        roles=roles,
        engines=("mlx", "vllm") if roles else (),
    )
    with open_identity(directory) as identity:
        async with Cluster.joined(identity, options) as joined:
            instances = InstanceManager(
                lambda: joined.update_instances(instances.records()),
                lambda instance, stage, fraction: None,
                command=lambda _: toy_engine.command(*engine_options),
            )
            if roles and loaded:
                spec = InstanceSpec(model=MODEL, engine="mlx", roles=roles)
                instances.add(spec, _nowhere)
            services = connect(config, joined, instances, store)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(instances.run)
                nursery.start_soon(services.run)
                yield ToyNode(joined, instances, services.backend, services.orders, store)
                nursery.cancel_scope.cancel()


def make_checkpoint(path: Path) -> None:
    """Make what passes for a checkpoint: the toy engine looks at no file."""
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")


async def _nowhere() -> Path:
    return Path("/nowhere")


@asynccontextmanager
async def readable_failures() -> AsyncIterator[None]:
    """Raise what a test failed with, not the groups that the nodes' nurseries put around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


@asynccontextmanager
async def toy_nodes(
    directory: Path,
    *nodes: tuple[tuple[Role, ...], tuple[str, ...]],
    overlap: bool = True,
    floor: int = 64,
) -> AsyncIterator[list[ToyNode]]:
    """Run several nodes until each sees every instance ready.

    Args:
        directory: for their data.
        nodes: roles and engine options of each.
        overlap: see `toy_node`.
        floor: see `toy_node`.
    """
    async with readable_failures(), AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(
                toy_node(directory / str(index), roles, *engine, overlap=overlap, floor=floor)
            )
            for index, (roles, engine) in enumerate(nodes)
        ]
        with_engine = sum(bool(roles) for roles, _ in nodes)

        def complete(node: ToyNode) -> bool:
            ready = [each for _, each in node.cluster.view.instances() if each.state == "ready"]
            linked = {link.peer_id for link in node.cluster.links}
            return len(ready) == with_engine and len(linked) == len(nodes) - 1

        await until(lambda: all(complete(node) for node in running), 30)
        yield running
