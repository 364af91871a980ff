"""Keeps out of the process what py-libp2p imports and a node never uses.

`import libp2p` brings QUIC, WebSockets, TLS with an ACME client, relays, DNS, metrics and three
more kinds of keys, with some 500 modules of others behind them. That is a quarter of the time in
which a node starts, and of its memory. Empty modules stand in for those listed here, whose names
are mentioned (as types, or in an `except`), but not called as long as there is only TCP and noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Final, NoReturn

__all__ = ["leave_out_unused"]

_UNUSED: Final = (
    "libp2p.crypto.ecc",
    "libp2p.crypto.rsa",
    "libp2p.crypto.secp256k1",
    "libp2p.metrics.swarm",
    "libp2p.rcmgr.prometheus_exporter",
    "libp2p.relay.circuit_v2.nat",
    "libp2p.security.pnet.psk_conn",
    "libp2p.security.secio",
    "libp2p.security.secio.transport",
    "libp2p.security.tls.autotls.acme",
    "libp2p.security.tls.autotls.broker",
    "libp2p.security.tls.transport",
    "libp2p.transport.quic.config",
    "libp2p.transport.quic.connection",
    "libp2p.transport.quic.exceptions",
    "libp2p.transport.quic.stream",
    "libp2p.transport.quic.transport",
    "libp2p.transport.quic.utils",
    "libp2p.transport.websocket.transport",
    "multiaddr.resolvers",
)


def leave_out_unused() -> None:
    """Do so; to be called before anything imports libp2p. What is loaded already stays."""
    for name in _UNUSED:
        sys.modules.setdefault(name, _Absent(name))


class _Absent(ModuleType):
    """Has every public name, as a class that is good for nothing."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if (inner := sys.modules.get(f"{self.__name__}.{name}")) is not None:
            return inner
        # An exception, since some of them are named in `except`.
        absent = _AbsentClass(name, (Exception,), {"__module__": self.__name__})
        setattr(self, name, absent)
        return absent


class _AbsentClass(type):
    def __getattr__(cls, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*arguments: object, **options: object) -> NoReturn:
            # As py-libp2p does of what it cannot read: a peer with such a key is refused with it.
            raise ValueError(f"{cls.__module__}.{cls.__name__} is left out of a node")

        return refuse
