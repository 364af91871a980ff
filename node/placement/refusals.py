"""Refusals to load a model, with what could be done. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from node.placement.options import Obstacle
from protocols.gossip import NodeRecord
from protocols.placement import Place, RefusalCode, Refused

__all__ = ["cannot_load", "not_on_disk"]

_NEAREST: Final[tuple[RefusalCode, ...]] = (
    "memory",
    "unreachable",
    "failed",
    "role",
    "incompatible",
)
"""Of several reasons, the one that is nearest to a success names the refusal."""

_REMEDIES: Final[dict[RefusalCode, str]] = {
    "memory": "remove an instance there (`DELETE /v1/instances/ID`), or add the model to a node "
    "with more memory",
    "failed": "see the log there; `POST /v1/instances` with that `node` tries it again",
    "role": "start one of them with --role both, or add the model to another node",
    "incompatible": "add a form of it that one of the engines runs, or add it to another node",
}
_MAX_NAMED: Final = 4


def not_on_disk(nodes: Sequence[NodeRecord], wish: Place) -> Refused:
    """Say that none of the nodes that were considered has the model."""
    able = _named(list(dict.fromkeys(node.host for node in nodes if node.engines)))
    where = f"node {wish.node} does not have" if wish.node else "no node has"
    remedy = f"`baton models add DIR` on one of {able}" if able else "start a node with an engine"
    return Refused("not_on_disk", f"{where} {wish.model} on disk", remedy)


def cannot_load(wish: Place, obstacles: Sequence[Obstacle]) -> Refused:
    """Say what stands against each copy of the model, of which there is one at least."""
    ranked = sorted(obstacles, key=lambda each: _NEAREST.index(each.code))
    nearest = ranked[0].code
    texts = _named(list(dict.fromkeys(each.text for each in ranked)), "; ")
    return Refused(nearest, f"{wish.model} cannot be loaded: {texts}", _REMEDIES.get(nearest, ""))


def _named(items: Sequence[str], separator: str = ", ") -> str:
    shown = separator.join(items[:_MAX_NAMED])
    more = len(items) - _MAX_NAMED
    return f"{shown}{separator}and {more} more" if more > 0 else shown
