"""Finds the cluster's nodes on the local networks with mDNS: first sight only, never liveness.

A node that was killed withdraws nothing, and what others cached of it lives on for minutes. Each
start therefore announces itself under a name of its own, with its incarnation; whoever reads it
keeps the highest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio
import zeroconf
from loguru import logger
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

from node.interfaces import Interface

__all__ = ["Announcement", "PeerFound", "announce_and_browse", "decode_txt", "encode_txt"]

SERVICE_TYPE: Final = "_baton._tcp.local."
_MAX_ADDRESSES: Final = 24
_RESOLVE_TIMEOUT_MS: Final = 3000
_MAX_TXT_STRING: Final = 255


class Announcement(msgspec.Struct, frozen=True):
    """What a node says of itself over mDNS."""

    peer_id: str
    cluster: str
    """The cluster's name; of a protected one, its tag."""
    incarnation: int
    addresses: tuple[str, ...]
    """Multiaddrs without the peer id."""
    version: str = ""


class PeerFound(msgspec.Struct, frozen=True):
    """A node of some cluster has been seen, or has changed its addresses."""

    announcement: Announcement


def encode_txt(announcement: Announcement) -> dict[str, str]:
    """Return the TXT record of an announcement. Addresses beyond the first 24 are left out."""
    txt = {
        "peer": announcement.peer_id,
        "cluster": announcement.cluster,
        "inc": str(announcement.incarnation),
        "v": announcement.version,
    }
    for number, address in enumerate(announcement.addresses[:_MAX_ADDRESSES]):
        txt[f"a{number}"] = address
    for key, value in txt.items():
        if len(key) + 1 + len(value.encode()) > _MAX_TXT_STRING:
            raise ValueError(f"{key} is too long for mDNS: {value!r}")
    return txt


def decode_txt(properties: Mapping[bytes, bytes | None]) -> Announcement:
    """Read a TXT record.

    Raises:
        ValueError: it lacks a field, or one is not what it has to be.
    """
    try:
        txt = {key.decode(): (value or b"").decode() for key, value in properties.items()}
        addresses = tuple(
            txt[key] for number in range(_MAX_ADDRESSES) if (key := f"a{number}") in txt
        )
        return Announcement(
            txt["peer"], txt["cluster"], int(txt["inc"]), addresses, txt.get("v", "")
        )
    except KeyError as error:
        raise ValueError(f"the announcement lacks {error}") from error


class _Listener(ServiceListener):
    """Called in zeroconf's threads; hands what it finds over to trio."""

    def __init__(
        self, token: trio.lowlevel.TrioToken, found: trio.MemorySendChannel[PeerFound]
    ) -> None:
        self._token = token
        self._found = found

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        info = zc.get_service_info(type_, name, _RESOLVE_TIMEOUT_MS)
        if info is None:
            logger.debug("mDNS: {} was announced but could not be resolved", name)
            return
        try:
            announcement = decode_txt(info.properties)
        except ValueError as error:
            logger.warning("mDNS: {} is ignored: {}", name, error)
            return
        try:
            self._token.run_sync_soon(self._deliver, PeerFound(announcement))
        except trio.RunFinishedError:
            logger.debug("mDNS: {} was found after the node had ended", name)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        logger.debug("mDNS: {} is no longer announced", name)

    def _deliver(self, event: PeerFound) -> None:
        try:
            self._found.send_nowait(event)
        except trio.WouldBlock:
            logger.warning("mDNS: {} is lost, too many were found", event.announcement.peer_id)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("mDNS: {} was found while closing", event.announcement.peer_id)


@asynccontextmanager
async def announce_and_browse(
    announcement: Announcement,
    interfaces: Sequence[Interface],
    found: trio.MemorySendChannel[PeerFound],
) -> AsyncGenerator[None]:
    """Announce this node on `interfaces` and send what is seen there to `found`, while open.

    Everything of zeroconf's runs in threads. A goodbye is sent at the end, also when cancelled.

    Args:
        announcement: what is said of this node.
        interfaces: where; addresses on others are neither sent to nor listened on.
        found: bounded; what does not fit is dropped with a warning, and seen again later.

    Raises:
        OSError: no socket could be opened on the interfaces.
    """
    listener = _Listener(trio.lowlevel.current_trio_token(), found)
    info = ServiceInfo(
        SERVICE_TYPE,
        f"{announcement.peer_id[-16:]}-{announcement.incarnation}.{SERVICE_TYPE}",
        port=int(announcement.addresses[0].rpartition("/")[2]) if announcement.addresses else 0,
        properties=encode_txt(announcement),
        parsed_addresses=[ip for each in interfaces for ip in each.ips],
        server=f"{announcement.peer_id[-16:]}.local.",
    )
    zc = await trio.to_thread.run_sync(_open, interfaces)
    try:
        await trio.to_thread.run_sync(_start, zc, info, listener)
        yield
    finally:
        with trio.CancelScope(shield=True):
            # Says goodbye for what was registered, and stops the browser.
            await trio.to_thread.run_sync(zc.close)


def _open(interfaces: Sequence[Interface]) -> Zeroconf:
    # Both IP versions: the other end of a cable may have the other one alone. IPv6 goes by the
    # interface's number, since a link-local address may be on several. zeroconf cannot listen on
    # ::1.
    choice: list[str | int] = []
    for interface in interfaces:
        choice += [str(each.ip) for each in interface.addresses if each.version == 4]
        if any(each.version == 6 and not each.ip.is_loopback for each in interface.addresses):
            choice.append(interface.index)
    version = IPVersion.All if any(isinstance(each, int) for each in choice) else IPVersion.V4Only
    try:
        return Zeroconf(interfaces=choice, ip_version=version)
    except (zeroconf.Error, RuntimeError) as error:
        # An interface that has gone meanwhile is a RuntimeError.
        raise OSError(f"zeroconf cannot start: {error}") from error


def _start(zc: Zeroconf, info: ServiceInfo, listener: ServiceListener) -> None:
    try:
        # The name is unique by construction, so there is no need to probe for conflicts.
        zc.register_service(info, cooperating_responders=True)
        ServiceBrowser(zc, SERVICE_TYPE, listener)
    except zeroconf.Error as error:
        raise OSError(f"zeroconf cannot announce: {error}") from error
