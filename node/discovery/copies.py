"""Finds out whether another node runs with this node's identity: a copied data directory."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

import trio
from loguru import logger

from node.errors import DuplicateIdentity
from node.interfaces import Interface
from node.routes import Route, rank_routes

__all__ = ["Copies", "CopyFinder", "Verdict", "gives_way"]

_REMEDY: Final = "its data directory was copied: remove identity.key from one of the two"


class Verdict(Enum):
    """What came of looking for a copy."""

    NONE = "none"
    FOUND = "found"
    LOOKING = "looking"
    """It is being looked for already."""


class CopyFinder(Protocol):
    """What is needed of a host."""

    @property
    def addresses(self) -> tuple[str, ...]: ...

    @property
    def interfaces(self) -> tuple[Interface, ...]: ...

    async def finds_copy(self, route: Route) -> bool:
        """Whether another process proves at the end of a route that it holds our key."""
        ...


def gives_way(own: tuple[int, Sequence[str]], other: tuple[int, Sequence[str]]) -> bool:
    """Whether this node gives way to its copy: the one that started later does. Pure.

    Args:
        own: this node's incarnation and addresses. Those decide if both started in one second, so
            that only one of them ends.
        other: the copy's.
    """
    return (own[0], sorted(own[1])) >= (other[0], sorted(other[1]))


class Copies:
    """Looks for copies of this node where they are said to be.

    Args:
        host: what asks for proof.
        restricted: whether nothing but the host's interfaces may be dialled over.
    """

    def __init__(self, host: CopyFinder, *, restricted: bool) -> None:
        self._host = host
        self._restricted = restricted
        self._looking: set[tuple[str, ...]] = set()
        self._told: set[str] = set()

    async def check(self, own: int, incarnation: int, addresses: tuple[str, ...]) -> Verdict:
        """Judge what is said of this node elsewhere.

        What proves at these addresses that it holds the same key is a living copy; anything else is
        an old announcement, of an address or a port that somebody else may have by now.

        Args:
            own: this node's incarnation.
            incarnation: the one that was said.
            addresses: multiaddrs that were said.

        Raises:
            DuplicateIdentity: there is a copy, and this node is the one to give way.
        """
        ours = self._host.addresses
        foreign = tuple(each for each in addresses if each not in ours)
        if not foreign:
            return Verdict.NONE
        if foreign in self._looking:
            return Verdict.LOOKING
        self._looking.add(foreign)
        try:
            at = await self._find(foreign)
        finally:
            self._looking.discard(foreign)
        if at is None:
            return Verdict.NONE
        problem = f"another node runs with this node's identity at {at.address}"
        if gives_way((own, ours), (incarnation, addresses)):
            raise DuplicateIdentity(problem, _REMEDY)
        if at.address not in self._told:
            self._told.add(at.address)
            logger.error("{}: {}", problem, _REMEDY)
        return Verdict.FOUND

    async def _find(self, addresses: Sequence[str]) -> Route | None:
        routes = rank_routes(addresses, self._host.interfaces, restricted=self._restricted)
        found: list[Route] = []

        async def ask(route: Route) -> None:
            if await self._host.finds_copy(route):
                found.append(route)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for route in routes:
                nursery.start_soon(ask, route)
        return found[0] if found else None
