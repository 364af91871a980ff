"""A machine of a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from bench.simulation.node import SimulatedNode

__all__ = ["Delays", "Host", "HostLink", "Schedule"]


@dataclass
class HostLink:
    """One end of a connection."""

    incarnation: int
    """Of the peer, when the link was made."""
    heard_at: float


@dataclass(eq=False)
class Host:
    """A machine: what outlives its process, and the process itself if it runs."""

    index: int
    origin: float
    """What its clock shows at the beginning."""
    rate: float
    """Seconds of its clock per second."""
    node: SimulatedNode | None = None
    incarnation: int = 0
    term: int = 0
    """On its disk."""
    frozen_until: float = 0.0
    publishing: int = 0
    links: dict[int, HostLink] = field(default_factory=dict)
    """By peer."""
    mesh: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The peer id."""
        return f"12D3KooWSimulatedHost{self.index:04}"

    def local(self, now: float) -> float:
        """Return what its clock shows."""
        return self.origin + now * self.rate


Delays: TypeAlias = Callable[[], "tuple[float, ...]"]
"""Says after how long each copy of a message arrives, in seconds; none if it is lost."""
Schedule: TypeAlias = Callable[[Host, float, Callable[[SimulatedNode], None]], None]
"""Has a host do something in so many seconds: later if it is frozen, never if it has ended."""
