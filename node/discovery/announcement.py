"""What a node says of itself over mDNS, and the TXT record that says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from node.interfaces import Interface, is_scoped
from node.routes import parse_address

__all__ = ["Announcement", "PeerFound", "decode_txt", "encode_txt", "foremost"]

_MAX_ADDRESSES: Final = 24
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


def foremost(addresses: Sequence[str], interfaces: Sequence[Interface]) -> tuple[str, ...]:
    """Return the addresses to announce, at most 24 of them.

    The first of each kind of each interface go before the second ones, so that an interface with
    many addresses keeps none out; else they stay in order, which is that of the interfaces.

    Args:
        addresses: multiaddrs, those of the best interface first.
        interfaces: whose addresses they are.
    """
    depth: dict[str, int] = {}
    for interface in interfaces:
        seen: Counter[tuple[bool, bool]] = Counter()
        for ip in interface.ips:
            kind = ":" in ip, is_scoped(ip)
            depth.setdefault(ip, seen[kind])
            seen[kind] += 1
    ranked = sorted(addresses, key=lambda each: depth.get(parse_address(each)[0], 0))
    kept = set(ranked[:_MAX_ADDRESSES])
    return tuple(each for each in addresses if each in kept)


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
