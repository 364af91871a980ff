"""The node: everything put together, in one trio program."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

import trio
from loguru import logger

from node.cluster import Cluster, ClusterOptions
from node.config import NodeConfig
from node.errors import BatonError, ModelNotHere
from node.hardware import detect, plan_engines
from node.http.app import create_app
from node.http.server import serve
from node.identity import Identity, open_identity
from node.instances.instance import Instance, InstanceSpec
from node.instances.manager import InstanceManager
from node.instances.process import engine_command
from node.models import BUNDLED_MODEL, ModelStore
from node.secret import read_secret
from node.services import connect
from protocols.engine import EngineName
from protocols.gossip import Accelerator, Role

__all__ = ["Companion", "EnginePlan", "OnLoading", "run"]

OnLoading: TypeAlias = Callable[[Instance, str, float], None]
"""Told the instance, the stage of its loading and how far that is, from 0 to 1."""

EnginePlan: TypeAlias = tuple[tuple[EngineName, tuple[Role, ...]], ...]
"""The engines that a node starts, and what each of them does."""

Companion: TypeAlias = Callable[[Cluster], Awaitable[None]]
"""Runs beside a node, from when it has joined until it leaves."""


@dataclass(frozen=True)
class _Parts:
    """What a node is made of, its configuration apart."""

    engines: EnginePlan
    accelerator: Accelerator
    command: Callable[[EngineName], list[str]]
    models: tuple[str, ...]
    store: ModelStore
    on_loading: OnLoading
    companion: Companion | None
    secret: bytes | None = field(repr=False)


def run(
    config: NodeConfig,
    on_loading: OnLoading | None = None,
    *,
    engines: EnginePlan | None = None,
    command: Callable[[EngineName], list[str]] = engine_command,
    companion: Companion | None = None,
) -> None:
    """Run a node until it is interrupted or terminated.

    Args:
        config: how it is set up.
        on_loading: told how far the loading of each model is; left out, the log is.
        engines: what to start; left out, what is installed here and the configuration decide.
        command: returns the command of an engine's process.
        companion: runs beside the node, and watches it.

    Raises:
        BatonError: it cannot run as it is set up.
    """
    hardware = detect()
    if engines is None:
        engines = plan_engines(config.role, config.engine, hardware)
    store = ModelStore(config.models_dir)
    models = _models(config, store) if engines else ()
    if not engines:
        logger.warning("no engine is installed: this node forwards requests to others")
    parts = _Parts(
        engines=engines,
        accelerator=hardware.accelerator,
        command=command,
        models=models,
        store=store,
        on_loading=on_loading or _log_loading,
        companion=companion,
        secret=read_secret(config.secret_file) if config.secret_file is not None else None,
    )
    with open_identity(config.data_dir) as identity:
        try:
            trio.run(_run_until_signal, config, identity, parts)
        except BaseExceptionGroup as group:
            told, others = group.split(BatonError)
            if told is None or others is not None:
                raise
            raise _first(told) from group


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _log_loading(instance: Instance, stage: str, fraction: float) -> None:
    logger.info("{} on {}: {} ({:.0%})", instance.spec.model, instance.id, stage, fraction)


def _models(config: NodeConfig, store: ModelStore) -> tuple[str, ...]:
    if config.models:
        for name in config.models:
            store.check(name)
        return config.models
    try:
        store.check(BUNDLED_MODEL)
    except ModelNotHere as error:
        logger.warning("no model is loaded: give one with --model ({})", error)
        return ()
    return (BUNDLED_MODEL,)


async def _run_until_signal(config: NodeConfig, identity: Identity, parts: _Parts) -> None:
    stop = trio.Event()

    async def run_node() -> None:
        await _run(config, identity, parts, stop)
        nursery.cancel_scope.cancel()

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_node)
            async for number in signals:
                if stop.is_set():
                    logger.warning("{} again: not waiting any more", signal.Signals(number).name)
                    nursery.cancel_scope.cancel()
                    break
                logger.info("{}: leaving the cluster", signal.Signals(number).name)
                stop.set()


async def _run(config: NodeConfig, identity: Identity, parts: _Parts, stop: trio.Event) -> None:
    options = ClusterOptions(
        cluster=config.cluster,
        secret=parts.secret,
        interfaces=config.interfaces,
        interface_classes=config.interface_classes,
        port=config.port,
        peers=config.peers,
        roles=tuple(dict.fromkeys(role for _, roles in parts.engines for role in roles)),
        engines=tuple(name for name, _ in parts.engines),
        accelerator=parts.accelerator,
        api=f"{config.api_host}:{config.api_port}",
        version=_version(),
    )
    async with Cluster.joined(identity, options) as cluster:
        instances = InstanceManager(
            lambda: cluster.update_instances(instances.records()),
            parts.on_loading,
            parts.command,
        )
        for model in parts.models:
            for engine, roles in parts.engines:
                spec = InstanceSpec(
                    model=_model_name(model),
                    engine=engine,
                    roles=roles,
                    memory_bytes=config.memory,
                )
                instances.add(spec, partial(parts.store.ensure, model))
        services = connect(config, cluster, instances, parts.store)
        app = create_app(services.backend, default_prefill=config.remote_prefill)
        async with trio.open_nursery() as engines_nursery:
            engines_nursery.start_soon(instances.run)
            engines_nursery.start_soon(services.run)
            if parts.companion is not None:
                engines_nursery.start_soon(parts.companion, cluster)
            # Running requests are answered to the end, within the server's grace period, so the
            # engines go after it; the cluster's goodbye comes last.
            async with trio.open_nursery() as serving:
                host, port = await serving.start(
                    partial(serve, app, config.api_host, config.api_port, shutdown=stop)
                )
                logger.info("node {} answers at http://{}:{}", cluster.peer_id, host, port)
            engines_nursery.cancel_scope.cancel()


def _model_name(model: str) -> str:
    """Return the name of a model that may have been given as a path."""
    return Path(model).resolve().name if model.startswith((".", "/", "~")) else model


def _version() -> str:
    try:
        return version("baton")
    except PackageNotFoundError:
        return ""
