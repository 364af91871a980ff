"""Keeps this node connected to every peer that it knows of, over the best route there is."""

from __future__ import annotations

import random
from typing import Final, Protocol

import trio
from loguru import logger

from node.interfaces import Interface
from node.routes import Route, rank_routes

__all__ = ["Dialer", "DialingHost"]

_COURTESY_S: Final = 1.0
"""How long the node with the higher peer id leaves the dialling to the other."""
_STAGGER_S: Final = 0.25
"""Head start of each route over the next."""
_FIRST_BACKOFF_S: Final = 0.5
_LAST_BACKOFF_S: Final = 15.0
_WARN_AT_FAILURE: Final = 4
_UPGRADE_S: Final = 30.0
"""How often a better route than the one in use is looked for."""


class DialingHost(Protocol):
    """What the dialer needs of a host."""

    @property
    def peer_id(self) -> str: ...

    @property
    def interfaces(self) -> tuple[Interface, ...]: ...

    def best_route(self, peer_id: str) -> Route | None:
        """Return the route of the best open link to a peer."""
        ...

    async def dial(self, peer_id: str, route: Route) -> bool:
        """Connect over one route; return whether that worked."""
        ...


class Dialer:
    """One task per known peer: dials its routes, best first, with back-off and for ever.

    Args:
        host: what dials.
        nursery: owns the tasks.
        restricted: whether nothing but the host's interfaces may be dialled over.
    """

    def __init__(self, host: DialingHost, nursery: trio.Nursery, *, restricted: bool) -> None:
        self._host = host
        self._nursery = nursery
        self._restricted = restricted
        self._known: dict[str, _Known] = {}

    def learn(self, peer_id: str, addresses: tuple[str, ...], incarnation: int) -> None:
        """Take note of a peer's addresses; those of an earlier incarnation are out of date."""
        known = self._get(peer_id)
        if known is None or not addresses:
            return
        if incarnation > known.incarnation:
            known.addresses, known.incarnation = addresses, incarnation
            known.poke()
        elif incarnation == known.incarnation and not set(addresses) <= set(known.addresses):
            # mDNS and gossip may each know a part; what no longer works costs a failed dial.
            known.addresses = (*addresses, *(set(known.addresses) - set(addresses)))
            known.poke()

    def pin(self, peer_id: str, address: str) -> None:
        """Dial a peer at this address too, whatever it announces."""
        known = self._get(peer_id)
        if known is not None:
            known.pinned = (*known.pinned, address)
            known.poke()

    def forget(self, peer_id: str) -> None:
        """Stop dialling a peer that has left for good, or that is none of ours."""
        known = self._known.pop(peer_id, None)
        if known is not None:
            known.scope.cancel()

    def poke(self, peer_id: str | None = None) -> None:
        """Look again at once: a link was lost, or (without a peer) our interfaces changed."""
        for known in [self._known.get(peer_id)] if peer_id else list(self._known.values()):
            if known is not None:
                known.poke()

    def _get(self, peer_id: str) -> _Known | None:
        if peer_id == self._host.peer_id:
            return None
        if peer_id not in self._known:
            known = self._known[peer_id] = _Known()
            self._nursery.start_soon(self._keep_connected, peer_id, known)
        return self._known[peer_id]

    async def _keep_connected(self, peer_id: str, known: _Known) -> None:
        with known.scope:
            if self._host.peer_id > peer_id:
                await trio.sleep(_COURTESY_S)
            backoff = _FIRST_BACKOFF_S
            while True:
                known.changed = trio.Event()
                routes = self._wanted(peer_id, known)
                if not routes or await self._race(peer_id, routes):
                    backoff, pause, known.failures = _FIRST_BACKOFF_S, _UPGRADE_S, 0
                elif self._host.best_route(peer_id) is not None:
                    pause = _UPGRADE_S
                else:
                    pause = backoff * random.uniform(0.8, 1.2)
                    backoff = min(backoff * 2, _LAST_BACKOFF_S)
                    self._report_failure(peer_id, known, routes, pause)
                with trio.move_on_after(pause):
                    await known.changed.wait()

    def _report_failure(
        self, peer_id: str, known: _Known, routes: tuple[Route, ...], pause: float
    ) -> None:
        known.failures += 1
        logger.debug("{} is out of reach, trying again in {:.1f} s", peer_id, pause)
        if known.failures == _WARN_AT_FAILURE:
            logger.warning(
                "{} was found, but connecting to it keeps failing at {}. Is there a firewall, has "
                "it ended without a goodbye, or is it of another version of Baton?",
                peer_id,
                ", ".join(route.address for route in routes),
            )

    def _wanted(self, peer_id: str, known: _Known) -> tuple[Route, ...]:
        """Return the routes worth dialling now: all when unconnected, else the better ones."""
        routes = rank_routes(
            (*known.pinned, *known.addresses), self._host.interfaces, restricted=self._restricted
        )
        current = self._host.best_route(peer_id)
        if current is None:
            if not routes and not known.refused:
                known.refused = True
                logger.warning(
                    "{} was found, but at no address that our interfaces lead to: {}",
                    peer_id,
                    ", ".join(known.addresses),
                )
            return routes
        if self._host.peer_id > peer_id:
            return ()
        return tuple(route for route in routes if route.interface and route.rank < current.rank)

    async def _race(self, peer_id: str, routes: tuple[Route, ...]) -> bool:
        """Dial the routes, each with a head start over the next, until one is connected."""
        connected = False

        async def attempt(route: Route, failed: trio.Event) -> None:
            nonlocal connected
            if await self._host.dial(peer_id, route):
                connected = True
                nursery.cancel_scope.cancel()
            failed.set()

        async with trio.open_nursery() as nursery:
            for route in routes:
                failed = trio.Event()
                nursery.start_soon(attempt, route, failed)
                with trio.move_on_after(_STAGGER_S):
                    await failed.wait()
        return connected


class _Known:
    """What is known of a peer to dial."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.pinned: tuple[str, ...] = ()
        self.incarnation = -1
        self.changed = trio.Event()
        self.scope = trio.CancelScope()
        self.refused = False
        self.failures = 0

    def poke(self) -> None:
        self.changed.set()
