"""Where a model could be loaded, and what stands against the other places. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from node.base_models import base_model
from node.hardware import ABILITIES
from node.placement.fit import available_bytes, gib, needed_bytes, quantization_obstacle
from protocols.engine import EngineName
from protocols.gossip import ModelRecord, NodeRecord, Role
from protocols.placement import Place, RefusalCode

__all__ = ["Copy", "Obstacle", "Option", "Ordered", "Places", "copies_of"]


class Ordered(msgspec.Struct, frozen=True):
    """A load that was ordered and that the node's record does not show yet."""

    peer_id: str
    model: str
    engine: EngineName
    roles: tuple[Role, ...]
    needed: int
    """Bytes."""
    instance: str = ""
    """Its id, once the node has named it."""


class Copy(NamedTuple):
    """A checkpoint on a node's disk that is, more or less, what was asked for."""

    node: NodeRecord
    model: ModelRecord
    form: int
    """0 for the very name, 1 for the name without its owner, 2 for another form of the model."""


class Option(NamedTuple):
    """A load that could be ordered."""

    copy: Copy
    engine: EngineName
    roles: tuple[Role, ...]
    needed: int
    """Bytes."""

    @property
    def node(self) -> NodeRecord:
        return self.copy.node


class Obstacle(NamedTuple):
    """Why a copy cannot be loaded."""

    code: RefusalCode
    text: str


def copies_of(nodes: Sequence[NodeRecord], name: str, *, any_form: bool) -> Iterator[Copy]:
    """Go through the copies of a model, and of other forms of it if they will do."""
    base = base_model(name)
    for node in nodes:
        for model in node.models:
            if model.name == name:
                yield Copy(node, model, 0)
            elif model.name.rpartition("/")[2] == name:
                yield Copy(node, model, 1)
            elif any_form and model.base_model == base:
                yield Copy(node, model, 2)


class Places:
    """The nodes, with what has been ordered of them, at the moment of one decision.

    Args:
        ordered: loads of which the nodes' records do not tell yet.
        refused: by peer id, why nodes did not carry out the order to load it.
    """

    def __init__(self, ordered: Sequence[Ordered], refused: Mapping[str, str]) -> None:
        self._ordered = ordered
        self._refused = refused

    def options(
        self, copies: Sequence[Copy], role: Role, wish: Place, taken: Option | None = None
    ) -> tuple[list[Option], list[Obstacle]]:
        """Return where a copy could be loaded for a role, and what stands against the others.

        Args:
            copies: those to consider.
            role: what the instance is for.
            wish: names the engine, if it has to be a certain one, and the node.
            taken: what is going to be loaded beside it.
        """
        options: list[Option] = []
        obstacles: list[Obstacle] = []
        for copy in copies:
            engines: list[EngineName] = [
                each for each in copy.node.engines if wish.engine is None or each == wish.engine
            ]
            if not engines:
                what = f"does not run {wish.engine}" if wish.engine else "has no engine"
                obstacles.append(Obstacle("incompatible", f"{copy.node.host} {what}"))
            for engine in engines:
                needed = needed_bytes(engine, copy.node.accelerator, copy.model)
                option = Option(copy, engine, _roles(copy.node, engine, role, wish), needed)
                obstacle = self._obstacle(option, role, wish, taken)
                if obstacle is None:
                    options.append(option)
                else:
                    obstacles.append(obstacle)
        return options, obstacles

    def burden(self, option: Option) -> tuple[int, int, int, int, str, str]:
        """Order options that are equal but for the work and the memory that their nodes have."""
        node, model = option.node, option.copy.model
        load = sum(each.load for each in node.instances)
        count = len(node.instances) + len(self._ordered_on(node))
        return load, count, option.copy.form, -self._free(node), node.peer_id, model.name

    def _ordered_on(self, node: NodeRecord) -> list[Ordered]:
        return [each for each in self._ordered if each.peer_id == node.peer_id]

    def _free(self, node: NodeRecord) -> int:
        return available_bytes(node) - sum(each.needed for each in self._ordered_on(node))

    def _obstacle(
        self, option: Option, role: Role, wish: Place, taken: Option | None
    ) -> Obstacle | None:
        node, model, engine = option.node, option.copy.model, option.engine
        if node.peer_id in self._refused:
            why = self._refused[node.peer_id]
            return Obstacle("unreachable", f"{node.host} has it, but did not load it: {why}")
        needs: tuple[Role, ...] = ("prefill", "decode") if wish.role == "both" else (role,)
        for each in needs:
            if each not in node.roles:
                allowed = " and ".join(node.roles) or "nothing"
                text = f"{node.host} has it, but is set to do {allowed}, not to {each}"
                return Obstacle("role", text)
            if each not in ABILITIES[engine]:
                return Obstacle("role", f"{engine} on {node.host} does not {each} for others")
        why = quantization_obstacle(engine, node.accelerator, model.quantization)
        if why:
            return Obstacle("incompatible", f"{node.host} has {model.name}, but {why}")
        if failed := _failure(option, wish):
            return Obstacle("failed", f"{engine} on {node.host} could not load it ({failed})")
        free = self._free(node)
        if taken is not None and taken.node.peer_id == node.peer_id:
            free -= taken.needed
        if option.needed > free:
            return Obstacle(
                "memory",
                f"{node.host} has it, but {engine} needs {gib(option.needed)} for it and may take "
                f"{gib(max(0, free))} of the {gib(node.memory_free)} that are free",
            )
        return None


def _roles(node: NodeRecord, engine: EngineName, role: Role, wish: Place) -> tuple[Role, ...]:
    """Return what an instance is to do: what it is for, and all else where that costs nothing."""
    if wish.role == "both":
        return ("prefill", "decode")
    # Where MLX decodes beside it on the same cores, vLLM keeps to prefill.
    shared = node.accelerator == "cpu" and {"mlx", "vllm"} <= set(node.engines)
    if wish.role is not None or shared:
        return (role,)
    return tuple(each for each in ABILITIES[engine] if each in node.roles or each == role)


def _failure(option: Option, wish: Place) -> str:
    """Return why this load has failed before. Whoever names the node may have seen to that."""
    if wish.node:
        return ""
    return next(
        (
            each.reason or "for no known reason"
            for each in option.node.instances
            if each.state == "failed"
            and (each.model, each.engine) == (option.copy.model.name, option.engine)
        ),
        "",
    )
