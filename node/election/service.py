"""Runs the election: the state machine's glue to the view, gossip, the clock and the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import trio
from loguru import logger

from node.election.machine import Effect, ElectionMachine, MasterChanged, PersistTerm, Send
from node.election.members import place_in, take_event
from node.election.terms import round_of
from node.membership.view import ClusterView, Event
from protocols.gossip import Heartbeat

__all__ = ["Election"]

_TICK_S: Final = 0.25


class Election:
    """Knows the master, and is it when its turn comes.

    What it says of itself is what is on the disk already: never a term that a crash could undo.

    Args:
        view: the members, for this node's place among them.
        term: the persisted term.
        persist: writes a term to the disk; called in a thread.
        publish: gossips a claim.
        greet: tells every connected node of this one's claim, which reaches those that gossip does
            not reach yet.
        on_change: called when the master or the term is another.
    """

    def __init__(
        self,
        view: ClusterView,
        term: int,
        *,
        persist: Callable[[int], None],
        publish: Callable[[Heartbeat], Awaitable[None]],
        greet: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self._view = view
        self._machine = ElectionMachine(
            view.self_id, view.own.incarnation, term, trio.current_time()
        )
        self._persist = persist
        self._publish = publish
        self._greet = greet
        self._on_change = on_change
        self._term = term
        self._master: tuple[str, int] | None = None
        self._claim: Heartbeat | None = None
        # Effects are few: every source of them is itself rate-limited.
        self._send, self._receive = trio.open_memory_channel[Effect](inf)

    @property
    def master(self) -> tuple[str, int] | None:
        """Peer id of the master and the term that it claimed."""
        return self._master

    @property
    def term(self) -> int:
        """The highest term that this node knows of."""
        return self._term

    @property
    def is_master(self) -> bool:
        return (
            self._master is not None
            and self._master[0] == self._view.self_id
            and self._machine.is_master
        )

    @property
    def claim(self) -> Heartbeat | None:
        """This node's own claim while it is the master."""
        return self._claim if self.is_master else None

    async def run(self) -> None:
        """Take part until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            async for effect in self._receive:
                await self._carry_out(effect)

    def heard(self, claim: Heartbeat) -> None:
        """Take another node's claim in."""
        self._queue(self._machine.heard(claim, place_in(self._view), trio.current_time()))

    def take(self, event: Event) -> None:
        """Take note of a change of the view."""
        self._queue(take_event(self._machine, self._view, event, trio.current_time()))

    async def _tick(self) -> None:
        while True:
            self._queue(self._machine.tick(place_in(self._view), trio.current_time()))
            await trio.sleep(_TICK_S)

    def _queue(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._send.send_nowait(effect)

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case PersistTerm(term=term):
                await self._write_down(term)
                self._term = term
                self._on_change()
            case Send(heartbeat=heartbeat):
                is_new = self._claim is None or self._claim.term != heartbeat.term
                self._claim = heartbeat
                if is_new:
                    self._greet()
                await self._publish(heartbeat)
            case MasterChanged(peer_id=peer_id, term=term):
                self._master = (peer_id, term) if peer_id is not None else None
                if peer_id is None:
                    logger.warning("there is no master for now (term {})", round_of(term))
                else:
                    who = "this node" if peer_id == self._view.self_id else peer_id
                    logger.info("the master is {} (term {})", who, round_of(term))
                self._on_change()

    async def _write_down(self, term: int) -> None:
        try:
            await trio.to_thread.run_sync(self._persist, term)
        except OSError as error:
            # Terms stay unique all the same, by the incarnation, which was written at the start.
            logger.error(
                "term {} could not be written to the data directory ({}), so this node will "
                "not know of it after a restart: make room there",
                round_of(term),
                error.strerror or error,
            )
