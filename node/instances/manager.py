"""All engine instances of this node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from node.base_models import base_model
from node.instances.instance import Instance, InstanceSpec
from node.instances.process import engine_command
from protocols.engine import EngineName
from protocols.gossip import InstanceRecord, Role

__all__ = ["InstanceManager"]

TELL_LOAD_S: Final = 0.25
"""How old the load may be that the cluster knows of."""


class InstanceManager:
    """Starts instances and finds them by model and role.

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

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances)

    def records(self) -> tuple[InstanceRecord, ...]:
        """Return what other nodes are told of the instances."""
        return tuple(instance.record() for instance in self._instances)

    def add(self, spec: InstanceSpec, locate: Callable[[], Awaitable[Path]]) -> Instance:
        """Take up an instance; `run` starts it.

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
        self._on_change()
        return instance

    def get(self, instance_id: str) -> Instance | None:
        """Return the instance of that id."""
        return next((each for each in self._instances if each.id == instance_id), None)

    def find(self, model: str, role: Role) -> Instance | None:
        """Return the least loaded ready instance of a model for a role.

        An instance of exactly that name comes before one of the same base model.
        """
        fitting = [
            each
            for each in self._instances
            if each.state == "ready"
            and role in each.roles
            and (each.spec.model == model or each.base_model == base_model(model))
        ]
        return min(fitting, key=lambda each: (each.spec.model != model, each.load), default=None)

    async def run(self) -> None:
        """Keep every instance running until cancelled."""
        async with trio.open_nursery() as nursery:
            for instance in self._instances:
                nursery.start_soon(instance.run)
            nursery.start_soon(self._tell_load)

    async def _tell_load(self) -> None:
        """Say when load or measured rates have changed, but not for every request."""
        told = self.records()
        while True:
            await trio.sleep(TELL_LOAD_S)
            if (records := self.records()) != told:
                told = records
                self._on_change()
