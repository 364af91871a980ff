"""Finds the cluster's nodes on the local networks with mDNS: first sight only, never liveness.

A node that was killed withdraws nothing, and what others cached of it lives on for minutes. Each
start therefore announces itself under a name of its own, with its incarnation; whoever reads it
keeps the highest.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio
import zeroconf
from loguru import logger
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

from node.discovery.announcement import Announcement, PeerFound, decode_txt, encode_txt
from node.interfaces import Interface
from node.routes import parse_address

__all__ = ["Mdns", "mdns"]

SERVICE_TYPE: Final = "_baton._tcp.local."
_RESOLVE_TIMEOUT_MS: Final = 3000

_Choice: TypeAlias = str | int
"""How zeroconf is told where to send: an IPv4 address, or the number of an interface for IPv6."""


class Mdns:
    """Announces this node and browses for others. Made by `mdns`; its calls block.

    Interfaces are brought up one by one where they do not come up together, so that one that fails
    takes no other along.

    Args:
        listener: called in threads with what is seen.
    """

    def __init__(self, listener: ServiceListener) -> None:
        self._listener = listener
        self._zc: Zeroconf | None = None
        self._info: ServiceInfo | None = None
        self._browser: ServiceBrowser | None = None
        self._working: tuple[Interface, ...] = ()

    def apply(self, announcement: Announcement, interfaces: Sequence[Interface]) -> dict[str, str]:
        """Announce this, on these interfaces and no others, and browse there.

        Returns:
            The interfaces that did not come up, each with the reason; to be tried again later.

        Raises:
            OSError: there is no mDNS at all.
        """
        if self._zc is None:
            self._zc = _open()
        kept = [each for each in interfaces if each in self._working]
        new = [each for each in interfaces if each not in self._working]
        if len(kept) < len(self._working):
            # What has changed is taken down first: a membership does not survive its address.
            _bring_up(self._zc, [], kept)
        failed = _bring_up(self._zc, kept, new)
        added = [each for each in new if each.name not in failed]
        self._working = (*kept, *added)
        self._announce(self._zc, announcement)
        if added or self._browser is None:
            self._browse(self._zc)
        return failed

    def close(self) -> None:
        """Say goodbye and stop."""
        if self._zc is not None:
            self._zc.close()

    def _announce(self, zc: Zeroconf, announcement: Announcement) -> None:
        info = _service_info(announcement)
        try:
            if self._info is not None and self._info.name == info.name:
                zc.update_service(info)
            else:
                if self._info is not None:
                    zc.unregister_service(self._info)
                # The name is unique by construction, so there is no need to probe for conflicts.
                zc.register_service(info, cooperating_responders=True)
        except zeroconf.Error as error:
            raise OSError(f"zeroconf cannot announce: {error!r}") from error
        self._info = info

    def _browse(self, zc: Zeroconf) -> None:
        # A new browser asks at once, an old one in up to an hour.
        if self._browser is not None:
            self._browser.cancel()
        self._browser = ServiceBrowser(zc, SERVICE_TYPE, self._listener)


@asynccontextmanager
async def mdns(found: trio.MemorySendChannel[PeerFound]) -> AsyncGenerator[Mdns]:
    """Run mDNS while open. A goodbye is said at the end, also when cancelled.

    Args:
        found: gets what is seen; bounded: what does not fit is dropped with a warning, and seen
            again later.
    """
    service = Mdns(_Listener(trio.lowlevel.current_trio_token(), found))
    try:
        yield service
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(service.close)


class _Listener(ServiceListener):
    """Called in zeroconf's threads; hands what it finds over to trio."""

    def __init__(
        self, token: trio.lowlevel.TrioToken, found: trio.MemorySendChannel[PeerFound]
    ) -> None:
        self._token = token
        self._found = found

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        try:
            info = zc.get_service_info(type_, name, _RESOLVE_TIMEOUT_MS)
        except (zeroconf.Error, AssertionError) as error:
            # It asserts that it runs, which it no longer does while closing.
            logger.debug("mDNS: {} was announced while closing: {!r}", name, error)
            return
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


def _open() -> Zeroconf:
    """Start zeroconf, on no interface yet.

    Raises:
        OSError: it cannot be.
    """
    try:
        return Zeroconf(interfaces=[], ip_version=IPVersion.All)
    except OSError as error:
        logger.debug("mDNS over IPv6 does not work here: {}", error)
        return Zeroconf(interfaces=[], ip_version=IPVersion.V4Only)


def _bring_up(
    zc: Zeroconf, working: Sequence[Interface], new: Sequence[Interface]
) -> dict[str, str]:
    """Use new interfaces beside those that work; return the ones that fail, with the reasons."""
    try:
        # Together if they can be, since each time something comes up all is announced again.
        _use(zc, [*working, *new])
        return {}
    except OSError as error:
        if len(new) == 1:
            return {new[0].name: str(error)}
        logger.debug("not all interfaces can be used: {}", error)
    failed: dict[str, str] = {}
    good = list(working)
    for interface in new:
        try:
            _use(zc, [*good, interface])
            good.append(interface)
        except OSError as error:
            failed[interface.name] = str(error)
    return failed


def _use(zc: Zeroconf, interfaces: Sequence[Interface]) -> None:
    """Have zeroconf use these interfaces and no others.

    Raises:
        OSError: one of them does not come up.
    """
    try:
        zc.update_interfaces([choice for each in interfaces for choice in _choices(each)])
    except (zeroconf.Error, RuntimeError) as error:
        raise OSError(f"zeroconf cannot use it: {error!r}") from error
    bound = {sender.sock_name[0].partition("%")[0] for sender in zc.engine.senders}
    for interface in interfaces:
        # zeroconf itself only logs it.
        if not bound.intersection(interface.ips):
            raise OSError(f"the mDNS group cannot be joined on {interface.name}")


def _choices(interface: Interface) -> list[_Choice]:
    """Return where mDNS is to run for an interface.

    Both IP versions: the other end of a cable may have the other one alone. IPv6 goes by the
    interface's number, since a link-local address may be on several. zeroconf cannot use ::1.

    Raises:
        OSError: the interface has gone, or there is nothing of it that mDNS could use.
    """
    choices: list[_Choice] = [str(each.ip) for each in interface.addresses if each.version == 4]
    if any(each.version == 6 and not each.ip.is_loopback for each in interface.addresses):
        choices.append(socket.if_nametoindex(interface.name))
    if not choices:
        raise OSError("it has no address that mDNS could use")
    return choices


def _service_info(announcement: Announcement) -> ServiceInfo:
    endpoints = [parse_address(each) for each in announcement.addresses]
    return ServiceInfo(
        SERVICE_TYPE,
        f"{announcement.peer_id[-16:]}-{announcement.incarnation}.{SERVICE_TYPE}",
        port=endpoints[0][1] if endpoints else 0,
        properties=encode_txt(announcement),
        parsed_addresses=list(dict.fromkeys(ip for ip, _ in endpoints)),
        server=f"{announcement.peer_id[-16:]}.local.",
    )
