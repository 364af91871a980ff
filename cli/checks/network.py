"""Interfaces, multicast, and ports."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from typing import Final

import httpx

from cli.checks.check import Check
from node.config import NodeConfig
from node.errors import BatonError
from node.interfaces import Interface, list_interfaces, select_interfaces

__all__ = ["check_multicast", "check_network", "check_port"]

_MDNS_GROUP: Final = "224.0.0.251"
_MDNS_GROUP_V6: Final = "ff02::fb"
_HEALTH_TIMEOUT_S: Final = 3.0


def check_network(config: NodeConfig) -> Iterator[Check]:
    """Check the interfaces that a node would use, multicast on each, and the ports."""
    try:
        interfaces = select_interfaces(list_interfaces(config.interface_classes), config.interfaces)
    except BatonError as error:
        yield Check("interfaces", "fail", error.problem, error.remedy)
        interfaces = ()
    for interface in interfaces:
        yield _describe(interface)
        yield check_multicast(interface)
    if interfaces and not config.interfaces and all(i.klass == "loopback" for i in interfaces):
        remedy = "connect this machine to a network to use others"
        yield Check("network", "warn", "only loopback is up: the node will be alone", remedy)
    yield check_port("api port", config.api_host, config.api_port, "--api HOST:PORT")
    if config.port:
        yield check_port("port", "0.0.0.0", config.port, "--port")


def check_multicast(interface: Interface) -> Check:
    """Join the mDNS group on an interface and leave it, without sending to it."""
    name = f"multicast {interface.name}"
    first = interface.addresses[0]
    try:
        if first.version == 4:
            _join_v4(str(first.ip))
        else:
            _join_v6(interface.name)
    except OSError as error:
        return Check(
            name,
            "warn",
            f"the mDNS group cannot be joined ({error.strerror or error})",
            "name the other nodes with --peer on this network",
        )
    return Check(name, "ok", "the mDNS group can be joined")


def check_port(name: str, host: str, port: int, option: str) -> Check:
    """Check that a TCP port can be listened on, or that it is a Baton node that does so.

    Args:
        name: what the port is for.
        host: address to listen on.
        port: the port.
        option: the option of `baton up` that sets it.
    """
    where = f"{host}:{port}"
    remedy = f"choose another with {option}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            reason = error.strerror or str(error)
            return Check(
                name, "fail", f"{where} cannot be listened on ({reason})", "choose another"
            )
        if _is_baton(host, port):
            return Check(name, "ok", f"{where}, where a Baton node answers already")
        return Check(name, "fail", f"{where} is used by another program", remedy)
    return Check(name, "ok", f"{where} is free")


def _describe(interface: Interface) -> Check:
    speed = f", {interface.speed_mbps} Mbit/s" if interface.speed_mbps else ""
    detail = f"{interface.klass}{speed}: {', '.join(interface.ips)}"
    return Check(f"interface {interface.name}", "ok", detail)


def _join_v4(address: str) -> None:
    membership = socket.inet_aton(_MDNS_GROUP) + socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)


def _join_v6(interface: str) -> None:
    group = socket.inet_pton(socket.AF_INET6, _MDNS_GROUP_V6)
    membership = group + struct.pack("@I", socket.if_nametoindex(interface))
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)


def _is_baton(host: str, port: int) -> bool:
    bracketed = f"[{host}]" if ":" in host else host
    try:
        with httpx.Client(trust_env=False, timeout=_HEALTH_TIMEOUT_S) as client:
            return "peer_id" in client.get(f"http://{bracketed}:{port}/health").text
    except httpx.HTTPError:
        return False
