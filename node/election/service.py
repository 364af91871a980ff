"""Runs the election: the state machine's glue to gossip, the clock and the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

import trio
from loguru import logger

from node.election.machine import Effect, ElectionMachine, MasterChanged, PersistTerm, Send
from node.membership.view import ClusterView
from protocols.gossip import Heartbeat

__all__ = ["Election"]

_TICK_S = 0.25


class Election:
    """Knows the master, and is it when its turn comes.

    Args:
        view: the members, for this node's rank among them.
        term: the persisted term.
        persist: writes a term to the disk; called in a thread.
        publish: gossips a claim.
        on_master: told the master's peer id (None for none) and the term whenever they change.
    """

    def __init__(
        self,
        view: ClusterView,
        term: int,
        *,
        persist: Callable[[int], None],
        publish: Callable[[Heartbeat], Awaitable[None]],
        on_master: Callable[[str | None, int], None],
    ) -> None:
        self._view = view
        self._machine = ElectionMachine(view.self_id, term, trio.current_time())
        self._persist = persist
        self._publish = publish
        self._on_master = on_master
        self._claim: Heartbeat | None = None
        # Effects are few: every source of them is itself rate-limited.
        self._send, self._receive = trio.open_memory_channel[Effect](inf)

    @property
    def master(self) -> tuple[str, int] | None:
        """Peer id and term of the master."""
        master = self._machine.master
        return (master, self._machine.term) if master is not None else None

    @property
    def term(self) -> int:
        """The highest term that this node knows of."""
        return self._machine.term

    @property
    def is_master(self) -> bool:
        return self._machine.is_master

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
        self._queue(self._machine.heard(claim, trio.current_time()))

    def heard_term(self, term: int) -> None:
        """Take note of a term that another node knows of."""
        self._queue(self._machine.heard_term(term, trio.current_time()))

    def gone(self, peer_id: str) -> None:
        """Take note that a member is gone."""
        self._queue(self._machine.gone(peer_id, self._rank(), trio.current_time()))

    async def _tick(self) -> None:
        while True:
            self._queue(self._machine.tick(self._rank(), trio.current_time()))
            await trio.sleep(_TICK_S)

    def _rank(self) -> int:
        own = self._view.own
        return sum(
            (member.record.incarnation, member.record.peer_id) < (own.incarnation, own.peer_id)
            for member in self._view.members
            if member.state == "alive"
        )

    def _queue(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._send.send_nowait(effect)

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case PersistTerm(term=term):
                await trio.to_thread.run_sync(self._persist, term)
            case Send(heartbeat=heartbeat):
                self._claim = heartbeat
                await self._publish(heartbeat)
            case MasterChanged(peer_id=peer_id, term=term):
                if peer_id is None:
                    logger.warning("there is no master for now (term {})", term)
                else:
                    who = "this node" if peer_id == self._view.self_id else peer_id
                    logger.info("the master is {} (term {})", who, term)
                self._on_master(peer_id, term)
