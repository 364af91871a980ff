"""Network namespaces joined by a bridge, for tests that need machines of their own.

The bridge lives in a namespace too, so nothing of it touches this machine's network, and there is
no default route: what the nodes send reaches nobody else.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["Network", "network"]


class Network:
    """Namespaces `0..n-1`, with addresses `10.77.0.1..n` on an interface called `net0` in each."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def prefix(self, index: int) -> list[str]:
        """Return the words before a command that run it in a namespace."""
        return ["ip", "netns", "exec", self._names[index]]

    def set_cable(self, index: int, *, plugged: bool) -> None:
        """Plug or pull the cable of a namespace."""
        _ip("-n", self._names[index], "link", "set", "net0", "up" if plugged else "down")


@contextmanager
def network(count: int) -> Iterator[Network]:
    """Make `count` namespaces and their bridge; skip the test where that is not possible."""
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
        _ip("-n", bridge, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        _ip("-n", bridge, "link", "set", "br0", "up")
        for index, name in enumerate(names):
            port = f"port{index}"
            _ip(
                *("-n", bridge, "link", "add", port, "type", "veth"),
                *("peer", "name", "net0", "netns", name),
            )
            _ip("-n", bridge, "link", "set", port, "master", "br0", "up")
            _ip("-n", name, "address", "add", f"10.77.0.{index + 1}/24", "dev", "net0")
            _ip("-n", name, "link", "set", "net0", "up")
        yield Network(names)
    finally:
        for name in made:
            _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)
