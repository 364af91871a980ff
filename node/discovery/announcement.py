"""What a node says of itself over mDNS, and the TXT record that says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

__all__ = ["MAX_ADDRESSES", "Announcement", "PeerFound", "decode_txt", "encode_txt"]

MAX_ADDRESSES: Final = 24
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
    for number, address in enumerate(announcement.addresses[:MAX_ADDRESSES]):
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
            txt[key] for number in range(MAX_ADDRESSES) if (key := f"a{number}") in txt
        )
        return Announcement(
            txt["peer"], txt["cluster"], int(txt["inc"]), addresses, txt.get("v", "")
        )
    except KeyError as error:
        raise ValueError(f"the announcement lacks {error}") from error
