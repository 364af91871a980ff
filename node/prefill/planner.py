"""Deciding on prefill elsewhere for one request, and doing it."""

from __future__ import annotations

from typing import Final

import msgspec

from node.cluster import Cluster
from node.errors import PeerUnreachable
from node.instances.connection import RequestHandle
from node.instances.instance import Instance
from node.instances.manager import InstanceManager
from node.links import Link
from node.prefill.engine import prefill_here
from node.prefill.remote import prefill_there
from node.prefill.transfer import Progress, Transfer, inject_all
from node.routing import DecodeChoice, LinkState, PrefillCandidate, PrefillPolicy, rank_prefill
from node.transport.conduct import Offence
from node.transport.errors import ConnectionLost, TransportError
from node.transport.streams import ByteStream
from protocols.cache import CacheLayout
from protocols.chat import PrefillPolicy as Wish
from protocols.kv_prefill.messages import PROTOCOL_ID, Codec, Request

__all__ = ["Candidate", "Plan", "Planner"]

RAW_ABOVE_BYTES_PER_S: Final = 400e6
"""Faster links carry the cache raw: encoding it would take longer than it saves."""

PATIENCE: Final = 4.0
"""A prefill may take this many times what was expected of it, and `GRACE_S` more."""
GRACE_S: Final = 20.0


class Candidate(msgspec.Struct, frozen=True):
    """An engine that may prefill, and how it would be asked."""

    peer_id: str
    instance_id: str
    model: str
    """As that engine's node calls it."""
    route: str
    codecs: tuple[Codec, ...]
    deadline_ms: int


class Plan(msgspec.Struct, frozen=True):
    """Whom to ask, best first; nobody for local prefill."""

    candidates: tuple[Candidate, ...]
    reason: str


class Planner:
    """Plans and makes transfers for this node's decode engines.

    Args:
        cluster: knows the nodes and the links to them.
        instances: of this node.
        policy: what the user wants, unless a request says otherwise.
    """

    def __init__(self, cluster: Cluster, instances: InstanceManager, policy: PrefillPolicy) -> None:
        self._cluster = cluster
        self._instances = instances
        self._policy = policy

    def plan(self, instance: Instance, tokens: int, wish: Wish) -> Plan:
        """Decide where to prefill the prompt of a request.

        Args:
            instance: that will decode.
            tokens: of the prompt.
            wish: what the request asks for.
        """
        if wish == "local":
            return Plan((), "the request asks for local prefill")
        if tokens < 2:
            return Plan((), "a prompt of one token has nothing to prefill")
        if instance.capabilities is None or not instance.capabilities.can_inject:
            return Plan((), f"{instance.spec.engine} cannot take in a cache computed elsewhere")
        policy = self._policy
        if wish == "remote":
            policy = msgspec.structs.replace(policy, mode="always", floor=0)
        ranking = rank_prefill(
            self._cluster.view,
            DecodeChoice(self._cluster.peer_id, instance.record()),
            tokens - 1,
            policy,
            self._links(),
        )
        candidates = tuple(self._candidate(each) for each in ranking.candidates)
        if not candidates:
            return Plan((), ranking.reason)
        asked = "the request asks for remote prefill; " if wish == "remote" else ""
        return Plan(candidates, asked + ranking.candidates[0].reason)

    async def transfer(
        self,
        candidate: Candidate,
        request: Request,
        instance: Instance,
        handle: RequestHandle,
        progress: Progress,
    ) -> Transfer:
        """Have a candidate prefill, and inject what comes.

        Args:
            candidate: whom to ask.
            request: what for.
            instance: that will decode.
            handle: its request.
            progress: told how far the prompt has been read.

        Raises:
            BatonError: the candidate cannot be asked.
            EngineDied: the decode engine died.
        """
        patience = candidate.deadline_ms / 1000
        if candidate.peer_id == self._cluster.peer_id:
            other = self._instances.get(candidate.instance_id)
            if other is None:
                raise PeerUnreachable(f"the instance {candidate.instance_id} is no more")
            async with prefill_here(other, request) as source:
                return await inject_all(source, handle, request.end, patience, progress)
        layout = instance.capabilities.layout if instance.capabilities else None
        if layout is None:
            raise PeerUnreachable("the decode engine is not loaded")
        return await self._transfer_there(candidate, request, layout, handle, progress)

    async def _transfer_there(
        self,
        candidate: Candidate,
        request: Request,
        layout: CacheLayout,
        handle: RequestHandle,
        progress: Progress,
    ) -> Transfer:
        link: Link | None = None

        async def open_stream(peer_id: str, protocol: str) -> ByteStream:
            nonlocal link
            link, stream = await self._cluster.open_bulk(peer_id, protocol)
            return stream

        patience = candidate.deadline_ms / 1000
        try:
            async with prefill_there(
                open_stream, candidate.peer_id, request, layout, handle
            ) as source:
                result = await inject_all(source, handle, request.end, patience, progress)
            result.link_lost = source.link_lost and not result.complete
            if source.violation:
                said = f"{PROTOCOL_ID}: {source.violation}"
                self._cluster.host.warden.report(candidate.peer_id, Offence.MALFORMED, said)
        except TransportError as error:
            lost = isinstance(error, ConnectionLost)
            result = Transfer(reason=str(error), link_lost=lost, usable_end=request.start)
        if link is not None:
            result.route = _describe(link)
            self._note_rate(link, result)
        return result

    def _links(self) -> dict[str, LinkState]:
        links: dict[str, LinkState] = {}
        for link in self._cluster.links:
            rate = self._cluster.rate(link)
            links.setdefault(link.peer_id, LinkState(link.route.klass, rate))
        return links

    def _candidate(self, ranked: PrefillCandidate) -> Candidate:
        deadline_s = GRACE_S
        if ranked.expected_s < float("inf"):
            deadline_s += PATIENCE * ranked.expected_s
        link = self._cluster.host.best_link(ranked.peer_id)
        route = "this node"
        codecs: tuple[Codec, ...] = ("raw",)
        if ranked.peer_id != self._cluster.peer_id and link is not None:
            state = LinkState(link.route.klass, self._cluster.rate(link))
            # On one machine encoding and computing fight for the same cores.
            here = link.route.klass == "loopback"
            fast = here or state.expected_bytes_per_s >= RAW_ABOVE_BYTES_PER_S
            codecs = ("raw",) if fast else ("planes", "raw")
            route = _describe(link)
        return Candidate(
            peer_id=ranked.peer_id,
            instance_id=ranked.instance.id,
            model=ranked.instance.model,
            route=route,
            codecs=codecs,
            deadline_ms=int(deadline_s * 1000),
        )

    def _note_rate(self, link: Link, transfer: Transfer) -> None:
        """Remember what a link reached, if it was the link that set the pace."""
        if not transfer.complete or transfer.transfer_s <= 0:
            return
        rate = transfer.sent_bytes / transfer.transfer_s
        known = self._cluster.rate(link) or 0.0
        if rate > known or transfer.hidden_s < transfer.transfer_s / 2:
            self._cluster.note_rate(link, rate)


def _describe(link: Link) -> str:
    return f"{link.route.klass} {link.route.interface} {link.route.address}"
