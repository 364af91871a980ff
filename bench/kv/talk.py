"""What the processes of a transfer say to each other; see `bench.kv.worker`."""

from __future__ import annotations

import sys

import msgspec

from bench.kv.data import ENCODERS
from bench.kv.meter import Usage
from bench.kv.transfer import Case, Fetched

__all__ = ["Address", "Connected", "Done", "worker_command"]


class Address(msgspec.Struct):
    """A server's first word."""

    address: str


class Connected(msgspec.Struct):
    """A client's first word."""

    connected: bool = True


class Done(msgspec.Struct):
    """What a client says when it has fetched a cache."""

    fetched: Fetched
    usage: Usage


def worker_command(
    case: Case, *, ip: str = "", address: str = "", threads: int = ENCODERS
) -> list[str]:
    """Return the command of a server that listens on `ip`, or of a client of `address`."""
    options = ["--address", address] if address else ["--ip", ip, "--threads", str(threads)]
    return [sys.executable, "-P", "-m", "bench.kv.worker", case, *options]
