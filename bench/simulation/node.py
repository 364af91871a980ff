"""One node of a simulated cluster: what decides in a real one, without host, disk and clock."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from node.election.machine import Effect, ElectionMachine, MasterChanged, PersistTerm, Send
from node.election.members import place_in, take_event
from node.membership.rhythm import Rhythm
from node.membership.view import Change, ClusterView, Event
from protocols.gossip import (
    GossipMessage,
    Heartbeat,
    Hello,
    InstanceRecord,
    InterfaceRecord,
    Leave,
    NodeRecord,
)

__all__ = ["SimulatedNode", "typical_record"]


class SimulatedNode:
    """A `ClusterView`, an `ElectionMachine` and a `Rhythm`, joined as in `node/cluster.py`.

    Times are seconds by the node's own clock.

    Args:
        record: its first record; the incarnation and the persisted term are taken from it.
        now: the time of its start.
        carry_out: told each effect of the election; whatever it raises ends the others.
        poke: called when what `due` returns may have changed.
        greet: called when every connected node is to be sent a greeting.
    """

    def __init__(
        self,
        record: NodeRecord,
        now: float,
        *,
        carry_out: Callable[[Effect], None],
        poke: Callable[[], None],
        greet: Callable[[], None],
    ) -> None:
        self.view = ClusterView(record, now)
        self.machine = ElectionMachine(record.peer_id, record.incarnation, record.term, now)
        self.claim: Heartbeat | None = None
        self._tell = carry_out
        self._rhythm = Rhythm()
        self._poke = poke
        self._greet = greet

    @property
    def peer_id(self) -> str:
        return self.view.self_id

    @property
    def alive(self) -> list[str]:
        """The members that it holds for alive."""
        return [each.record.peer_id for each in self.view.members if each.state == "alive"]

    def due(self, linked: set[str]) -> float:
        """Return when to publish next.

        Args:
            linked: the peers to which there is a link.
        """
        present = self.view.present
        return self._rhythm.due(len(present), linked=linked >= present - {self.peer_id})

    def tick(self, now: float) -> None:
        """Judge the members, and the master."""
        self._take_events(self.view.tick(now), now)
        self._carry_out(self.machine.tick(place_in(self.view), now), now)

    def next_record(self, now: float) -> NodeRecord:
        """Return the record to publish."""
        own = self.view.own
        record = msgspec.structs.replace(own, sequence=own.sequence + 1)
        self.view.merge(record, now)
        self._rhythm.published(now)
        return record

    def hello(self) -> Hello:
        """Return the greeting for a new connection."""
        return Hello(self.view.own, self.claim if self.machine.is_master else None)

    def take(self, message: GossipMessage | Hello, now: float) -> None:
        """Take in what another node says."""
        match message:
            case NodeRecord():
                self._take_events(self.view.merge(message, now), now)
            case Leave():
                self._take_events(self.view.leave(message), now)
            case Heartbeat():
                self._carry_out(self.machine.heard(message, place_in(self.view), now), now)
            case Hello(record=record, claim=claim):
                self.take(record, now)
                if claim is not None:
                    self.take(claim, now)

    def link_up(self) -> None:
        """Note that there is another link."""
        self._unsettled()

    def beat(self, peer_id: str, now: float) -> None:
        """Note that a link's heartbeat was answered."""
        self._take_events(self.view.heard(peer_id, now), now)

    def link_lost(self, peer_id: str, now: float) -> None:
        """Note that the only link to a peer has ended."""
        self._unsettled()
        self._take_events(self.view.connection_lost(peer_id), now)

    def _unsettled(self) -> None:
        self._rhythm.unsettled()
        self._poke()

    def _take_events(self, events: list[Event], now: float) -> None:
        for event in events:
            if event.change is not Change.UPDATED:
                self._unsettled()
            self._carry_out(take_event(self.machine, self.view, event, now), now)

    def _carry_out(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            self._tell(effect)
            match effect:
                case PersistTerm() | MasterChanged():
                    self._update(self.machine.term, self.machine.master or "", now)
                case Send(heartbeat=heartbeat):
                    is_new = self.claim is None or self.claim.term != heartbeat.term
                    self.claim = heartbeat
                    if is_new:
                        self._greet()

    def _update(self, term: int, master: str, now: float) -> None:
        own = self.view.own
        if (own.term, own.master) != (term, master):
            changed = msgspec.structs.replace(
                own, term=term, master=master, sequence=own.sequence + 1
            )
            self.view.merge(changed, now)
            self._rhythm.changed()
            self._poke()


def typical_record(peer_id: str, incarnation: int, term: int) -> NodeRecord:
    """Return the record of a node with three interfaces and one model loaded."""
    addresses = tuple(f"/ip4/192.168.{subnet}.17/tcp/41234" for subnet in (1, 2, 3))
    link_local = "/ip6/fe80::5054:ff:fe12:3456/tcp/41234"
    instance = InstanceRecord(
        id=f"mlx-{peer_id[-4:]}",
        model="mlx-community/Qwen3-8B-4bit",
        base_model="Qwen3-8B",
        engine="mlx",
        roles=("prefill", "decode"),
        state="ready",
        max_context=40_960,
        fingerprint="0123456789abcdef" * 4,
        prefill_tokens_per_s=1470.25,
        decode_tokens_per_s=61.5,
        kv_bytes_per_token=147_456,
    )
    return NodeRecord(
        peer_id=peer_id,
        incarnation=incarnation,
        sequence=0,
        cluster="baton",
        host=f"machine-{peer_id[-4:]}",
        addresses=(*addresses, link_local),
        interfaces=tuple(
            InterfaceRecord(name, "ethernet", (f"192.168.{index}.17", "fe80::5054:ff:fe12:3456"))
            for index, name in enumerate(("eth0", "eth1", "wlan0"))
        ),
        roles=("prefill", "decode"),
        engines=("mlx",),
        memory_total=128 << 30,
        memory_free=96 << 30,
        instances=(instance,),
        api="127.0.0.1:52415",
        version="0.1.0",
        term=term,
    )
