"""All engine instances of this node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from node.base_models import base_model
from node.hardware import DECODE_ORDER
from node.instances.instance import Instance, InstanceSpec
from node.instances.process import engine_command
from protocols.engine import EngineName
from protocols.gossip import InstanceRecord, Role

__all__ = ["InstanceManager"]

TELL_LOAD_S: Final = 0.25
"""How old the load may be that the cluster knows of."""


@dataclass(frozen=True)
class _Run:
    """The task that keeps an instance running."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class InstanceManager:
    """Starts and ends instances, and finds them by model and role.

    Args:
        on_change: called whenever `records` would say something new.
        on_loading: told the instance, the stage of its loading and how far that is, from 0 to 1.
        command: returns the command of an engine's process.
    """

    def __init__(
        self,
        on_change: Callable[[], None],
        on_loading: Callable[[Instance, str, float], None],
        command: Callable[[EngineName], list[str]] = engine_command,
    ) -> None:
        self._on_change = on_change
        self._on_loading = on_loading
        self._command = command
        self._instances: list[Instance] = []
        self._runs: dict[str, _Run] = {}
        self._nursery: trio.Nursery | None = None

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances)

    def records(self) -> tuple[InstanceRecord, ...]:
        """Return what other nodes are told of the instances."""
        return tuple(instance.record() for instance in self._instances)

    def add(self, spec: InstanceSpec, locate: Callable[[], Awaitable[Path]]) -> Instance:
        """Take up an instance; it starts at once, or when `run` does.

        Args:
            spec: what to load.
            locate: finds its checkpoint; raises `ModelNotHere`.
        """
        instance = Instance(
            spec,
            base_model(spec.model),
            locate,
            self._on_change,
            lambda stage, fraction: self._on_loading(instance, stage, fraction),
            self._command,
        )
        self._instances.append(instance)
        if self._nursery is not None:
            self._start(instance, self._nursery)
        self._on_change()
        return instance

    async def remove(self, instance_id: str) -> bool:
        """End an instance and its process; return whether there was one of that id.

        Its requests fail at once, and nobody is sent to it any more while the process ends.
        """
        instance = self.get(instance_id)
        if instance is None:
            return False
        self._instances.remove(instance)
        instance.retire()
        self._on_change()
        run = self._runs.pop(instance_id, None)
        if run is not None:
            run.scope.cancel()
            await run.ended.wait()
        return True

    def get(self, instance_id: str) -> Instance | None:
        """Return the instance of that id."""
        return next((each for each in self._instances if each.id == instance_id), None)

    def find(self, model: str, role: Role) -> Instance | None:
        """Return the least loaded ready instance of a model for a role.

        An instance of exactly that name comes before one of the same base model, and MLX decodes
        before vLLM, as in `node.routing.choose_decode`.
        """
        fitting = [
            each
            for each in self._instances
            if each.state == "ready"
            and role in each.roles
            and (each.spec.model == model or each.base_model == base_model(model))
        ]
        decodes = role == "decode"

        def order(each: Instance) -> tuple[bool, int, int]:
            engine = DECODE_ORDER[each.spec.engine] if decodes else 0
            return each.spec.model != model, engine, each.load

        return min(fitting, key=order, default=None)

    async def run(self) -> None:
        """Keep every instance running until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for instance in self._instances:
                    self._start(instance, nursery)
                await self._tell_load()
            finally:
                self._nursery = None

    def _start(self, instance: Instance, nursery: trio.Nursery) -> None:
        self._runs[instance.id] = run = _Run()
        nursery.start_soon(self._keep, instance, run)

    async def _keep(self, instance: Instance, run: _Run) -> None:
        try:
            with run.scope:
                await instance.run()
        finally:
            run.ended.set()

    async def _tell_load(self) -> None:
        """Say when load or measured rates have changed, but not for every request."""
        told = self.records()
        while True:
            await trio.sleep(TELL_LOAD_S)
            if (records := self.records()) != told:
                told = records
                self._on_change()
