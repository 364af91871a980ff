"""Network namespaces joined by a bridge, for tests that need machines of their own.

The bridge lives in a namespace too, so nothing of it touches this machine's network, and there is
no default route: what the nodes send reaches nobody else.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

__all__ = ["Network", "network"]

_CLONE_NEWNET: Final = 0x40000000
_NAMESPACES: Final = Path("/run/netns")


class Network:
    """Namespaces `0..n-1`. On bridge `b`, each has an interface `netB`.

    Its IPv4 address is `10.(77 + b).0.(1 + index)`, unless the network was made without; an IPv6
    link-local one it gets by itself, a second or two later. What does not name a bridge is about
    `net0`.
    """

    def __init__(self, bridge: str, names: list[str], *, ipv4: bool) -> None:
        self._bridge = bridge
        self._names = names
        self._ipv4 = ipv4
        self._parts = 0

    def prefix(self, index: int) -> list[str]:
        """Return the words before a command that run it in a namespace."""
        return ["ip", "netns", "exec", self._names[index]]

    @contextmanager
    def inside(self, index: int) -> Iterator[None]:
        """Have the calling thread open its sockets in a namespace."""
        with Path("/proc/thread-self/ns/net").open() as home:
            with (_NAMESPACES / self._names[index]).open() as there:
                _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def set_cable(self, index: int, *, plugged: bool, bridge: int = 0) -> None:
        """Plug or pull the cable of a namespace."""
        state = "up" if plugged else "down"
        _ip("-n", self._names[index], "link", "set", f"net{bridge}", state)

    def plug_in(self, index: int, bridge: int = 0) -> None:
        """Give a namespace a new interface, on a bridge."""
        name, port, device = self._names[index], _port(index, bridge), f"net{bridge}"
        _ip(
            *("-n", self._bridge, "link", "add", port, "type", "veth"),
            *("peer", "name", device, "netns", name),
        )
        _ip("-n", self._bridge, "link", "set", port, "master", f"br{bridge}", "up")
        if self._ipv4:
            address = f"10.{77 + bridge}.0.{index + 1}/24"
            _ip("-n", name, "address", "add", address, "dev", device)
        _ip("-n", name, "link", "set", device, "up")

    def make_bridge(self, bridge: int) -> None:
        """Make a bridge that nobody is on yet."""
        self._add_bridge(f"br{bridge}")

    def unplug(self, index: int, bridge: int = 0) -> None:
        """Take an interface away, as unplugging a Thunderbolt cable does."""
        _ip("-n", self._names[index], "link", "delete", f"net{bridge}")

    def run(self, index: int, *command: str) -> None:
        """Run a command in a namespace, to its end."""
        _run(*self.prefix(index), *command)

    def eat_multicast(self, index: int) -> None:
        """Keep a namespace from hearing of and being heard over mDNS; needs nftables."""
        if shutil.which("nft") is None:
            pytest.skip("eating multicast needs nftables")
        rules = (
            "table inet eat {\n"
            "chain out { type filter hook output priority 0; udp dport 5353 drop; }\n"
            "chain in { type filter hook input priority 0; udp dport 5353 drop; }\n}\n"
        )
        _run(*self.prefix(index), "nft", "-f", "-", text=rules)

    def split(self, *groups: Iterable[int]) -> None:
        """Let namespaces of different groups hear nothing of each other; cables stay plugged."""
        for group in groups:
            self._parts += 1
            part = f"part{self._parts}"
            self._add_bridge(part)
            self._move(group, part)

    def join(self) -> None:
        """Undo `split`."""
        self._move(range(len(self._names)), "br0")
        for part in range(1, self._parts + 1):
            _ip("-n", self._bridge, "link", "del", f"part{part}")
        self._parts = 0

    def set_deaf(self, index: int, *, deaf: bool) -> None:
        """Keep everything from reaching a namespace; what it says goes out as before."""
        flag = "off" if deaf else "on"
        flags = (word for name in _DELIVERY for word in (name, flag))
        port = ("link", "set", f"port{index}", "type", "bridge_slave")
        _ip("-n", self._bridge, *port, *flags, "fdb_flush")

    def set_rate(self, index: int, mbit_per_s: float) -> None:
        """Limit what a namespace sends."""
        limit = ("rate", f"{mbit_per_s}mbit", "burst", "64kb", "latency", "100ms")
        device = ("qdisc", "replace", "dev", "net0", "root", "tbf")
        _run("tc", "-n", self._names[index], *device, *limit)

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
        _run(*self.prefix(index), "nft", "-f", "-", text=rules)

    def _add_bridge(self, name: str) -> None:
        # Without snooping, multicast is flooded at once, as in a switch that does not know it.
        _ip("-n", self._bridge, "link", "add", name, "type", "bridge", "mcast_snooping", "0")
        _ip("-n", self._bridge, "link", "set", name, "up")

    def _move(self, indices: Iterable[int], bridge: str) -> None:
        for index in indices:
            _ip("-n", self._bridge, "link", "set", f"port{index}", "master", bridge)


_DELIVERY: Final = ("flood", "mcast_flood", "bcast_flood", "learning")
"""Without these a bridge delivers nothing to a port, once it has forgotten who is there."""


@contextmanager
def network(count: int, *, ipv4: bool = True, bridges: int = 1) -> Iterator[Network]:
    """Make `count` namespaces and their bridges; skip the test where that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2")
    tag = f"bt{secrets.token_hex(3)}"
    bridge, names = f"{tag}-br", [f"{tag}-{index}" for index in range(count)]
    made: list[str] = []
    try:
        for name in (bridge, *names):
            try:
                _ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        cables = Network(bridge, names, ipv4=ipv4)
        for number in range(bridges):
            cables.make_bridge(number)
            for index in range(count):
                cables.plug_in(index, number)
        yield cables
    finally:
        for name in made:
            _ip("netns", "del", name)


def _port(index: int, bridge: int = 0) -> str:
    return f"port{index}" if bridge == 0 else f"port{index}.{bridge}"


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str, text: str = "") -> None:
    subprocess.run(words, input=text, check=True, capture_output=True, text=True, timeout=10)
