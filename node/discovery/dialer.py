"""Keeps this node connected to every peer that it knows of, over the best routes there are."""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

import msgspec
import trio
from loguru import logger

from node.interfaces import Interface
from node.routes import Hardware, Route, choose_pairs, rank_routes
from protocols.gossip import InterfaceRecord

__all__ = ["Dialer", "DialingHost"]

_COURTESY_S: Final = 1.0
"""How long the node with the higher peer id leaves the dialling to the other."""
_PATIENCE_S: Final = 20.0
"""How long it leaves a further connection to the other, which may be unable to make it."""
_STAGGER_S: Final = 0.25
"""Head start of each route over the next."""
_FIRST_BACKOFF_S: Final = 0.5
_LAST_BACKOFF_S: Final = 15.0
_WARN_AT_FAILURE: Final = 4
_MAX_KNOWN: Final = 512
"""Peers that are dialled. Any machine on the network can announce any number over mDNS."""
_MAX_ADDRESSES: Final = 64
_MAX_UNPROVEN_DIALS: Final = 16
"""At a time, to peers of which nothing is known but what was announced."""
_LOOK_S: Final = 30.0
"""How often is looked, besides when something changes."""


class DialingHost(Protocol):
    """What the dialer needs of a host."""

    @property
    def peer_id(self) -> str: ...

    @property
    def interfaces(self) -> tuple[Interface, ...]: ...

    def open_routes(self, peer_id: str) -> tuple[Route, ...]:
        """Return the routes of the open links to a peer."""
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
        self._turns = trio.CapacityLimiter(_MAX_UNPROVEN_DIALS)

    def learn(
        self,
        peer_id: str,
        addresses: tuple[str, ...],
        incarnation: int,
        interfaces: tuple[InterfaceRecord, ...] = (),
    ) -> None:
        """Take note of a peer's addresses; those of an earlier incarnation are out of date.

        Args:
            peer_id: whose they are.
            addresses: multiaddrs that it listens at.
            incarnation: of the start of the peer that announced them.
            interfaces: the peer's, when it is its own record that tells of the addresses. Anyone
                can announce anything over mDNS: that adds to what a peer has said itself, and
                takes nothing away.
        """
        known = self._get(peer_id)
        if known is None or not addresses:
            return
        addresses = addresses[:_MAX_ADDRESSES]
        if interfaces and not known.proven:
            known.proven, known.incarnation = True, -1
        elif known.proven and not interfaces:
            incarnation = min(incarnation, known.incarnation)
        if incarnation < known.incarnation:
            return
        before = (known.incarnation, known.addresses, known.interfaces)
        if incarnation > known.incarnation:
            known.incarnation = incarnation
            known.addresses, known.interfaces = addresses, interfaces
        elif interfaces:
            known.addresses, known.interfaces = addresses, interfaces
        else:
            # mDNS may know a part, or more than a record that was long on its way.
            more = tuple(each for each in addresses if each not in known.addresses)
            known.addresses = (*more, *known.addresses)[:_MAX_ADDRESSES]
        if before != (known.incarnation, known.addresses, known.interfaces):
            known.retries.clear()
            known.poke()

    def pin(self, peer_id: str, address: str) -> None:
        """Dial a peer at this address too, whatever it announces."""
        known = self._get(peer_id)
        if known is not None:
            known.pinned = (*known.pinned, address)
            known.poke()

    def left(self, peer_id: str) -> None:
        """Stop dialling a peer that has said goodbye, except at pinned addresses.

        Nothing but this node may ever tell that such a peer is back.
        """
        known = self._known.get(peer_id)
        if known is None or not known.pinned:
            self.forget(peer_id)
            return
        known.addresses = known.interfaces = ()
        # That it does not answer is no news.
        known.failures = _WARN_AT_FAILURE

    def forget(self, peer_id: str) -> None:
        """Stop dialling a peer that is none of ours, or long gone."""
        known = self._known.pop(peer_id, None)
        if known is not None:
            known.scope.cancel()

    def poke(self, peer_id: str | None = None) -> None:
        """Look again at once: a link was lost, or (without a peer) our interfaces changed."""
        for known in [self._known.get(peer_id)] if peer_id else list(self._known.values()):
            if known is not None:
                if peer_id is None:
                    known.retries.clear()
                known.poke()

    def _get(self, peer_id: str) -> _Known | None:
        if peer_id == self._host.peer_id:
            return None
        if peer_id not in self._known:
            if len(self._known) >= _MAX_KNOWN and not self._forget_one():
                return None
            known = self._known[peer_id] = _Known()
            self._nursery.start_soon(self._keep_connected, peer_id, known)
        return self._known[peer_id]

    def _forget_one(self) -> bool:
        """Make room by forgetting a peer that was announced and never reached, if there is one."""
        for peer_id, known in self._known.items():
            if not known.proven and not known.pinned and not self._host.open_routes(peer_id):
                self.forget(peer_id)
                return True
        return False

    async def _keep_connected(self, peer_id: str, known: _Known) -> None:
        with known.scope:
            if self._host.peer_id > peer_id:
                await trio.sleep(_COURTESY_S)
            while True:
                known.changed = trio.Event()
                if self._host.open_routes(peer_id):
                    known.failures, known.backoff_s = 0, _FIRST_BACKOFF_S
                    pause = await self._add_links(peer_id, known)
                else:
                    pause = await self._connect(peer_id, known)
                with trio.move_on_after(pause):
                    await known.changed.wait()

    async def _connect(self, peer_id: str, known: _Known) -> float:
        """Dial every route to a peer until one is connected; return when to look again."""
        routes = self._routes(known)
        if not routes:
            self._report_no_route(peer_id, known)
            return _LOOK_S
        if await self._race(peer_id, routes):
            return 0.0
        pause = known.backoff_s * random.uniform(0.8, 1.2)
        known.backoff_s = min(known.backoff_s * 2, _LAST_BACKOFF_S)
        self._report_failure(peer_id, known, routes, pause)
        return pause

    async def _add_links(self, peer_id: str, known: _Known) -> float:
        """Dial what is missing to a peer that is connected; return when to look again."""
        now = trio.current_time()
        missing = [
            (routes, known.retries.setdefault(routes[0].hardware, _Retry(self._first_try(peer_id))))
            for routes in self._missing(peer_id, known)
        ]
        async with trio.open_nursery() as nursery:
            for routes, retry in missing:
                if retry.at <= now:
                    nursery.start_soon(self._add_link, peer_id, routes, retry)
        next_at = min((retry.at for _, retry in missing), default=now + _LOOK_S)
        return max(0.0, next_at - trio.current_time())

    async def _add_link(self, peer_id: str, routes: tuple[Route, ...], retry: _Retry) -> None:
        connected = await self._race(peer_id, routes)
        # What has connected and turns out to be over other interfaces is no success either.
        retry.failed = True
        pause = retry.backoff_s * random.uniform(0.8, 1.2)
        retry.at = trio.current_time() + pause
        retry.backoff_s = min(retry.backoff_s * 2, _LAST_BACKOFF_S)
        if not connected:
            logger.debug(
                "{} is not to be reached at {} over {}, trying again in {:.1f} s",
                *(peer_id, *routes[0].pair, pause),
            )

    def _first_try(self, peer_id: str) -> float:
        patience_s = _PATIENCE_S if self._host.peer_id > peer_id else 0.0
        return trio.current_time() + patience_s

    def _missing(self, peer_id: str, known: _Known) -> list[tuple[Route, ...]]:
        """Return the routes of each pair of interfaces that ought to be connected and is not.

        A pair that fails does not stand in the way of others, but is not given up either.
        """
        links = self._host.open_routes(peer_id)
        routes = self._routes(known)
        uncovered = {
            route.hardware for route in routes if not any(link.covers(route) for link in links)
        }
        known.retries = {key: retry for key, retry in known.retries.items() if key in uncovered}
        failing = {key for key, retry in known.retries.items() if retry.failed}
        sound = [route for route in routes if route.hardware not in failing]
        chosen = (
            *choose_pairs(sound, restricted=self._restricted),
            *choose_pairs(routes, restricted=self._restricted),
        )
        return [each for each in dict.fromkeys(chosen) if each[0].hardware in uncovered]

    def _routes(self, known: _Known) -> tuple[Route, ...]:
        return rank_routes(
            (*known.pinned, *known.addresses),
            self._host.interfaces,
            restricted=self._restricted,
            theirs=known.interfaces,
        )

    def _report_no_route(self, peer_id: str, known: _Known) -> None:
        if not known.refused:
            known.refused = True
            logger.warning(
                "{} was found, but at no address that our interfaces lead to: {}",
                peer_id,
                ", ".join(known.addresses),
            )

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

    def _turn(self, peer_id: str) -> AbstractAsyncContextManager[None]:
        known = self._known.get(peer_id)
        trusted = known is not None and (known.proven or known.pinned)
        return nullcontext() if trusted else self._turns

    async def _race(self, peer_id: str, routes: tuple[Route, ...]) -> bool:
        """Dial the routes, each with a head start over the next, until one is connected."""
        connected = False

        async def attempt(route: Route, failed: trio.Event) -> None:
            nonlocal connected
            async with self._turn(peer_id):
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


class _Retry(msgspec.Struct):
    """When a pair of interfaces is dialled next."""

    at: float
    backoff_s: float = _FIRST_BACKOFF_S
    failed: bool = False


class _Known:
    """What is known of a peer to dial."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.pinned: tuple[str, ...] = ()
        self.interfaces: tuple[InterfaceRecord, ...] = ()
        self.incarnation = -1
        self.proven = False
        self.changed = trio.Event()
        self.scope = trio.CancelScope()
        self.refused = False
        self.failures = 0
        self.backoff_s = _FIRST_BACKOFF_S
        self.retries: dict[Hardware, _Retry] = {}
        """Of the pairs of interfaces that were missing."""

    def poke(self) -> None:
        self.changed.set()
