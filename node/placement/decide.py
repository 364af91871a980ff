"""Which node loads a model, with which engine, for what. A pure function of the cluster view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from node.base_models import base_model
from node.hardware import ABILITIES
from node.membership.view import ClusterView
from node.placement.fit import quantization_obstacle
from node.placement.options import Copy, Option, Ordered, Places, copies_of
from node.placement.refusals import cannot_load, not_on_disk
from protocols.engine import EngineName
from protocols.gossip import Accelerator, ModelRecord, NodeRecord, Role
from protocols.placement import InstanceRef, Place, Refused

__all__ = ["AlreadyLoaded", "Decision", "Plan", "PlannedLoad", "place", "runnable"]

_DECODE_RANK: Final[dict[tuple[EngineName, Accelerator], int]] = {
    ("mlx", "apple"): 0,
    ("vllm", "nvidia"): 1,
    ("mlx", "nvidia"): 2,
    ("mlx", "cpu"): 3,
    ("vllm", "cpu"): 4,
    ("vllm", "apple"): 5,
}
"""MLX before vLLM on hardware of a kind: it takes in caches that were computed elsewhere."""


class PlannedLoad(msgspec.Struct, frozen=True):
    """One order to be given."""

    peer_id: str
    host: str
    model: str
    """As the node calls it."""
    engine: EngineName
    roles: tuple[Role, ...]
    needed: int
    """Bytes."""
    reason: str


class Plan(msgspec.Struct, frozen=True):
    """What to load; the instance that was asked for comes first."""

    loads: tuple[PlannedLoad, ...]


class AlreadyLoaded(msgspec.Struct, frozen=True):
    """An instance that is what was asked for."""

    instance: InstanceRef


Decision: TypeAlias = Plan | AlreadyLoaded | Refused


def place(
    view: ClusterView,
    wish: Place,
    ordered: Sequence[Ordered] = (),
    refused: Mapping[str, str] | None = None,
) -> Decision:
    """Decide how a wish is fulfilled.

    The very model before another form of it, the fastest engine for decoding, then whether another
    engine can prefill for it, then the fewest nodes, the least loaded, and the most free memory.

    Args:
        view: the cluster; members under suspicion are left out.
        wish: what to load.
        ordered: loads of which the view does not tell yet.
        refused: by peer id, why nodes did not carry out the order to load it.
    """
    nodes = [each.record for each in view.members if each.state == "alive"]
    if wish.node:
        nodes = [node for node in nodes if node.peer_id == wish.node]
        if not nodes:
            return Refused("unknown_node", f"there is no node {wish.node}", "see `baton status`")
    existing = _existing(nodes, wish, ordered)
    if existing is not None:
        return AlreadyLoaded(existing)
    copies = list(copies_of(nodes, wish.model, any_form=wish.any_form))
    if not copies:
        return not_on_disk(nodes, wish)
    places = Places(ordered, refused or {})
    wanted: Role = "prefill" if wish.role == "prefill" else "decode"
    options, obstacles = places.options(copies, wanted, wish)
    if not options:
        return cannot_load(wish, obstacles)
    pairs = [(option, _partner(view, nodes, places, option, wish)) for option in options]
    first, second = min(pairs, key=lambda pair: _rank(places, *pair))
    loads = [_load(first, f"to {wanted}")]
    if second is not None:
        loads.append(_load(second, f"to prefill for {first.engine} on {first.node.host}"))
    return Plan(tuple(loads))


def runnable(view: ClusterView) -> Iterator[ModelRecord]:
    """Go through the checkpoints that some node could decode, if it had the memory, once each."""
    seen: set[str] = set()
    for member in view.members:
        node = member.record
        if member.state != "alive" or "decode" not in node.roles:
            continue
        for model in node.models:
            if model.name not in seen and any(
                "decode" in ABILITIES[engine]
                and not quantization_obstacle(engine, node.accelerator, model.quantization)
                for engine in node.engines
            ):
                seen.add(model.name)
                yield model


def _existing(
    nodes: Sequence[NodeRecord], wish: Place, ordered: Sequence[Ordered]
) -> InstanceRef | None:
    role: Role = "prefill" if wish.role == "prefill" else "decode"
    needs: set[Role] = {"prefill", "decode"} if wish.role == "both" else {role}

    def fits(model: str, engine: EngineName, roles: tuple[Role, ...]) -> bool:
        other_form = wish.any_form and base_model(model) == base_model(wish.model)
        same = wish.model in (model, model.rpartition("/")[2]) or other_form
        return same and wish.engine in (None, engine) and needs <= set(roles)

    for node in nodes:
        for each in node.instances:
            if each.state != "failed" and fits(each.model, each.engine, each.roles):
                return InstanceRef(node.peer_id, each.id, each.model, each.engine, each.roles)
    here = {node.peer_id for node in nodes}
    for load in ordered:
        if load.peer_id in here and load.instance and fits(load.model, load.engine, load.roles):
            return InstanceRef(load.peer_id, load.instance, load.model, load.engine, load.roles)
    return None


def _partner(
    view: ClusterView, nodes: Sequence[NodeRecord], places: Places, decode: Option, wish: Place
) -> Option | None:
    """Return where the model should be loaded to prefill for `decode`, if anywhere."""
    if wish.role is not None or wish.engine is not None or decode.engine != "mlx":
        return None
    model = decode.copy.model

    def helps(node: NodeRecord) -> bool:
        """Whether vLLM on that node reads prompts faster than MLX where it decodes."""
        cpus = node.accelerator == decode.node.accelerator == "cpu"
        return node.accelerator == "nvidia" or cpus

    for node, each in view.instances():
        prefills = each.engine == "vllm" and "prefill" in each.roles and each.state != "failed"
        if prefills and each.base_model == model.base_model and helps(node):
            return None
    copies = [
        Copy(node, each, int(each.name != model.name))
        for node in nodes
        for each in node.models
        if each.base_model == model.base_model and helps(node)
    ]
    vllm = msgspec.structs.replace(wish, engine="vllm")
    options, _ = places.options(copies, "prefill", vllm, decode)

    def rank(option: Option) -> tuple[object, ...]:
        slower = option.node.accelerator != "nvidia"
        elsewhere = option.node.peer_id != decode.node.peer_id
        return slower, elsewhere, *places.burden(option)

    return min(options, key=rank, default=None)


def _rank(places: Places, option: Option, partner: Option | None) -> tuple[object, ...]:
    """Order pairs of an instance and its partner; the least is the best."""
    help_rank = 2 if partner is None else int(partner.node.accelerator != "nvidia")
    alone = partner is None or partner.node.peer_id == option.node.peer_id
    engine = _DECODE_RANK[option.engine, option.node.accelerator]
    return option.copy.form, engine, help_rank, not alone, *places.burden(option)


def _load(option: Option, reason: str) -> PlannedLoad:
    node = option.node
    return PlannedLoad(
        peer_id=node.peer_id,
        host=node.host,
        model=option.copy.model.name,
        engine=option.engine,
        roles=option.roles,
        needed=option.needed,
        reason=reason,
    )
