"""`/baton/placement/1`: what nodes ask of the master, and what the master orders nodes to do.

    any node                  master                     the node that loads
    Place, Remove,      ->
    Link, Unlink                     LoadOrder,    ->
                                     UnloadOrder,
                                     LinkOrder
                                                   <-    Placed, Done; or Refused
                        <-    the same

One stream carries one request and its reply. Orders bear the term of the master that decided: a
node carries out none of a term before the highest that it knows. Each may be sent again, after its
reply was lost, and is then carried out once.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from protocols.engine import EngineName
from protocols.gossip import Role

__all__ = [
    "PROTOCOL_ID",
    "Done",
    "InstanceRef",
    "Link",
    "LinkOrder",
    "LoadOrder",
    "MasterRequest",
    "Order",
    "Place",
    "Placed",
    "PlacementMessage",
    "RefusalCode",
    "Refused",
    "Remove",
    "Reply",
    "RoleWish",
    "Unlink",
    "UnloadOrder",
]

PROTOCOL_ID: Final = "/baton/placement/1"

RoleWish: TypeAlias = Literal["prefill", "decode", "both"]
RefusalCode: TypeAlias = Literal[
    "unknown_node",
    "unknown_instance",
    "unknown_link",
    "not_on_disk",
    "incompatible",
    "role",
    "memory",
    "failed",
    "mismatch",
    "unreachable",
    "stale_term",
    "not_master",
    "no_master",
]


class Place(msgspec.Struct, frozen=True, tag="place"):
    """Have a model loaded; answered by `Placed` as soon as its instances exist."""

    model: str
    node: str = ""
    """Peer id of the node that is to load it; empty for the master to choose."""
    engine: EngineName | None = None
    role: RoleWish | None = None
    """None: an instance that decodes, and one that prefills for it where that helps."""
    any_form: bool = False
    """Whether another form of the same base model will do, if there is none of that name."""


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Have an instance removed, wherever it is; answered by `Done`."""

    instance: str


class Link(msgspec.Struct, frozen=True, tag="link"):
    """Let an instance prefill for another, and none that is not linked; answered by `Done`."""

    prefill: str
    decode: str


class Unlink(msgspec.Struct, frozen=True, tag="unlink"):
    """Take a link back; answered by `Done`."""

    prefill: str
    decode: str


MasterRequest: TypeAlias = Place | Remove | Link | Unlink


class LoadOrder(msgspec.Struct, frozen=True, tag="load"):
    """Load a model that is on the node's disk, unless the engine has it; answered by `Placed`."""

    term: int
    model: str
    engine: EngineName
    roles: tuple[Role, ...]


class UnloadOrder(msgspec.Struct, frozen=True, tag="unload"):
    """End an instance of the node's."""

    term: int
    instance: str


class LinkOrder(msgspec.Struct, frozen=True, tag="set_link"):
    """Let, or no longer let, an instance prefill for one of the node's."""

    term: int
    prefill: str
    decode: str
    linked: bool


Order: TypeAlias = LoadOrder | UnloadOrder | LinkOrder
PlacementMessage: TypeAlias = MasterRequest | Order


class InstanceRef(msgspec.Struct, frozen=True):
    """An instance, and the node that has it."""

    peer_id: str
    id: str
    model: str
    """As the node calls it."""
    engine: EngineName
    roles: tuple[Role, ...]


class Placed(msgspec.Struct, frozen=True, tag="placed"):
    """The instances that serve the model, the one asked for first; they may be loading still."""

    instances: tuple[InstanceRef, ...]
    created: bool = True
    """Whether any of them is new."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It is done."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It is not done."""

    code: RefusalCode
    reason: str
    """Without a full stop."""
    remedy: str = ""
    """What could be done about it, likewise."""

    @property
    def text(self) -> str:
        """The reason and the remedy in one line."""
        return f"{self.reason}: {self.remedy}" if self.remedy else self.reason


Reply: TypeAlias = Placed | Done | Refused
