"""Network namespaces joined by a bridge: machines of their own, whose links have a rate.

The bridge lives in a namespace too, so nothing of it touches this machine's network, and there is
no default route: what the nodes send reaches nobody else.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

__all__ = ["NamespacesUnavailable", "Network", "ip", "network", "port_name", "run"]

_CLONE_NEWNET: Final = 0x40000000
_NAMESPACES: Final = Path("/run/netns")
_BURST_S: Final = 0.002
"""Seconds' worth of bytes that may leave at once; without, a fast rate is not reached, since the
shaper is woken only so often, and would cut each packet of 64 KB into frames first."""
_MIN_BURST: Final = 64 << 10
_QUEUE_S: Final = 0.1
"""How long a byte may wait in a shaper before it is dropped."""

N = TypeVar("N", bound="Network")


class NamespacesUnavailable(Exception):
    """Network namespaces, or what shapes their links, cannot be had here."""


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

    def prefix(self, index: int) -> list[str]:
        """Return the words before a command that run it in a namespace."""
        return ["ip", "netns", "exec", self._names[index]]

    def address(self, index: int, bridge: int = 0) -> str:
        """Return the IPv4 address of a namespace on a bridge."""
        return f"10.{77 + bridge}.0.{index + 1}"

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

    def plug_in(self, index: int, bridge: int = 0) -> None:
        """Give a namespace a new interface, on a bridge."""
        name, port, device = self._names[index], port_name(index, bridge), f"net{bridge}"
        ip(
            *("-n", self._bridge, "link", "add", port, "type", "veth"),
            *("peer", "name", device, "netns", name),
        )
        ip("-n", self._bridge, "link", "set", port, "master", f"br{bridge}", "up")
        if self._ipv4:
            ip("-n", name, "address", "add", f"{self.address(index, bridge)}/24", "dev", device)
        ip("-n", name, "link", "set", device, "up")

    def make_bridge(self, bridge: int) -> None:
        """Make a bridge that nobody is on yet."""
        self.add_bridge(f"br{bridge}")

    def add_bridge(self, name: str) -> None:
        """Make a bridge by name."""
        # Without snooping, multicast is flooded at once, as in a switch that does not know it.
        ip("-n", self._bridge, "link", "add", name, "type", "bridge", "mcast_snooping", "0")
        ip("-n", self._bridge, "link", "set", name, "up")

    def run(self, index: int, *command: str) -> None:
        """Run a command in a namespace, to its end."""
        run(*self.prefix(index), *command)

    def set_rate(self, index: int, mbit_per_s: float) -> None:
        """Limit what a namespace sends.

        Raises:
            NamespacesUnavailable: there is no `tc` here, or it cannot shape.
        """
        if shutil.which("tc") is None:
            raise NamespacesUnavailable("shaping a link needs iproute2's tc")
        burst = max(_MIN_BURST, round(mbit_per_s * 1e6 / 8 * _BURST_S))
        limit = ("rate", f"{mbit_per_s}mbit", "burst", f"{burst}b", "latency", f"{_QUEUE_S}s")
        device = ("qdisc", "replace", "dev", "net0", "root", "tbf")
        try:
            run("tc", "-n", self._names[index], *device, *limit)
        except subprocess.CalledProcessError as error:
            raise NamespacesUnavailable(f"tc cannot shape links here: {error.stderr}") from error


@contextmanager
def network(count: int, kind: type[N], *, ipv4: bool = True, bridges: int = 1) -> Iterator[N]:
    """Make `count` namespaces and their bridges.

    Args:
        count: of namespaces.
        kind: `Network`, or a class that adds to it.
        ipv4: whether their interfaces get IPv4 addresses.
        bridges: how many networks they all are on.

    Raises:
        NamespacesUnavailable: that needs Linux, root and iproute2.
    """
    if os.geteuid() != 0:
        raise NamespacesUnavailable("network namespaces need root")
    if shutil.which("ip") is None:
        raise NamespacesUnavailable("network namespaces need iproute2, on Linux")
    tag = f"bt{secrets.token_hex(3)}"
    bridge, names = f"{tag}-br", [f"{tag}-{index}" for index in range(count)]
    made: list[str] = []
    try:
        for name in (bridge, *names):
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                raise NamespacesUnavailable(
                    f"network namespaces cannot be made here: {error.stderr.strip()}"
                ) from error
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        cables = kind(bridge, names, ipv4=ipv4)
        for number in range(bridges):
            cables.make_bridge(number)
            for index in range(count):
                cables.plug_in(index, number)
        yield cables
    finally:
        for name in made:
            ip("netns", "del", name)


def port_name(index: int, bridge: int = 0) -> str:
    """Return the name of the bridge's end of a namespace's cable."""
    return f"port{index}" if bridge == 0 else f"port{index}.{bridge}"


def ip(*words: str) -> None:
    """Run iproute2's `ip`."""
    run("ip", *words)


def run(*words: str, text: str = "") -> None:
    """Run a command to its end, `text` its input.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run(words, input=text, check=True, capture_output=True, text=True, timeout=10)


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
