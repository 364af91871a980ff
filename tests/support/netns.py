"""Network namespaces joined by a bridge, for tests that need machines of their own.

What `bench.namespaces` makes, with ways to break it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from bench import namespaces
from bench.namespaces import NamespacesUnavailable, ip, port_name, run

__all__ = ["Network", "network"]


class Network(namespaces.Network):
    """Namespaces whose cables can be pulled, and whose packets be lost."""

    def __init__(self, bridge: str, names: list[str], *, ipv4: bool) -> None:
        super().__init__(bridge, names, ipv4=ipv4)
        self._parts = 0

    def set_cable(self, index: int, *, plugged: bool, bridge: int = 0) -> None:
        """Plug or pull the cable of a namespace."""
        state = "up" if plugged else "down"
        ip("-n", self._names[index], "link", "set", f"net{bridge}", state)

    def unplug(self, index: int, bridge: int = 0) -> None:
        """Take an interface away, as unplugging a Thunderbolt cable does."""
        ip("-n", self._names[index], "link", "delete", f"net{bridge}")

    def eat_multicast(self, index: int) -> None:
        """Keep a namespace from hearing of and being heard over mDNS; needs nftables."""
        if shutil.which("nft") is None:
            pytest.skip("eating multicast needs nftables")
        rules = (
            "table inet eat {\n"
            "chain out { type filter hook output priority 0; udp dport 5353 drop; }\n"
            "chain in { type filter hook input priority 0; udp dport 5353 drop; }\n}\n"
        )
        run(*self.prefix(index), "nft", "-f", "-", text=rules)

    def split(self, *groups: Iterable[int]) -> None:
        """Let namespaces of different groups hear nothing of each other; cables stay plugged."""
        for group in groups:
            self._parts += 1
            part = f"part{self._parts}"
            self.add_bridge(part)
            self._move(group, part)

    def join(self) -> None:
        """Undo `split`."""
        self._move(range(len(self._names)), "br0")
        for part in range(1, self._parts + 1):
            ip("-n", self._bridge, "link", "del", f"part{part}")
        self._parts = 0

    def set_deaf(self, index: int, *, deaf: bool) -> None:
        """Keep everything from reaching a namespace; what it says goes out as before."""
        flag = "off" if deaf else "on"
        flags = (word for name in _DELIVERY for word in (name, flag))
        port = ("link", "set", port_name(index), "type", "bridge_slave")
        ip("-n", self._bridge, *port, *flags, "fdb_flush")

    def set_loss(self, index: int, percent: int) -> None:
        """Lose so many of the packets that a namespace is sent; needs nftables."""
        if shutil.which("nft") is None:
            pytest.skip("lossy links need nftables")
        rules = (
            "table inet loss\n"
            "delete table inet loss\n"
            "table inet loss { chain input { type filter hook input priority 0; policy accept;\n"
            f'iifname "net0" numgen random mod 100 < {percent} drop; }}; }}\n'
        )
        run(*self.prefix(index), "nft", "-f", "-", text=rules)

    def _move(self, indices: Iterable[int], bridge: str) -> None:
        for index in indices:
            ip("-n", self._bridge, "link", "set", port_name(index), "master", bridge)


_DELIVERY: Final = ("flood", "mcast_flood", "bcast_flood", "learning")
"""Without these a bridge delivers nothing to a port, once it has forgotten who is there."""


@contextmanager
def network(count: int, *, ipv4: bool = True, bridges: int = 1) -> Iterator[Network]:
    """Make `count` namespaces and their bridges; skip the test where that is not possible."""
    try:
        with namespaces.network(count, Network, ipv4=ipv4, bridges=bridges) as cables:
            yield cables
    except NamespacesUnavailable as error:
        pytest.skip(str(error))
