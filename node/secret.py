"""The secret that the members of a protected cluster share, and what is made of it.

Nobody sees the secret on the network. What is in the file is stretched with scrypt, so that each
guess at it, from a recorded handshake or announcement, costs an attacker a quarter of a second and
32 MiB. Of the result, one part enters every handshake (`node.transport.noise`), and another stands
for the cluster's name where anyone may listen, so that members find each other and strangers do not
even learn the name.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from loguru import logger

from node.errors import BatonError

__all__ = ["MIN_BYTES", "ClusterSecret", "SecretUnusable", "read_secret", "stretch"]

MIN_BYTES: Final = 16
_MAX_BYTES: Final = 64 << 10
_PROTOCOL: Final = b"baton/1"
_TAG_MARK: Final = "#"

_BOM: Final = b"\xef\xbb\xbf"


class SecretUnusable(BatonError):
    """The secret file cannot be read, or holds no usable secret."""


class ClusterSecret:
    """A secret, stretched for one cluster. Its representation tells nothing of it.

    Attributes:
        key: 32 bytes, for the handshake.
        tag: what is announced in place of the cluster's name; see `is_tag`.
    """

    __slots__ = ("key", "tag")

    def __init__(self, key: bytes, tag: str) -> None:
        self.key = key
        self.tag = tag

    def __repr__(self) -> str:
        """Return the same for every secret."""
        return "ClusterSecret(...)"

    @staticmethod
    def is_tag(announced: str) -> bool:
        """Whether what a node announces as its cluster is the tag of a protected one."""
        return announced.startswith(_TAG_MARK)


def read_secret(path: Path) -> bytes:
    """Return the secret in a file, without the line's end that editors leave. Blocks on the disk.

    Warns if other users of this machine may read it.

    Raises:
        SecretUnusable: there is no such file, it cannot be read, or what it holds is no secret.
    """
    make = f"make one with: (umask 077; openssl rand -base64 32 > '{path}')"
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise SecretUnusable(
            f"there is no secret file {path}", f"copy it from another node, or {make}"
        ) from None
    except IsADirectoryError:
        raise SecretUnusable(
            f"the secret file {path} is a directory", "name the file that holds the secret"
        ) from None
    except OSError as error:
        raise SecretUnusable(
            f"the secret file {path} cannot be read ({error.strerror or error})",
            "make it readable for the user that runs this node",
        ) from error
    if len(content) > _MAX_BYTES:
        raise SecretUnusable(
            f"the secret file {path} has more than {_MAX_BYTES} bytes",
            f"is it the right one? {make}",
        )
    secret = content.removeprefix(_BOM).rstrip(b"\r\n")
    if len(secret) < MIN_BYTES:
        what = f"has {len(secret)} characters, fewer than {MIN_BYTES}" if secret else "is empty"
        raise SecretUnusable(f"the secret file {path} {what}", make)
    if mode & 0o077:
        logger.warning(
            "the secret file {} can be read by other users of this machine (mode {:o}): "
            "chmod 600 '{}'",
            *(path, mode, path),
        )
    return secret


def stretch(secret: bytes, cluster: str) -> ClusterSecret:
    """Derive what the members of a cluster use. Takes about a quarter of a second.

    The cost is that which OWASP recommends for scrypt (N = 2^15, r = 8, p = 3). The cluster's name
    is in the salt, so clusters of different names have nothing in common even with one secret.
    """
    salt = hashlib.sha256(_PROTOCOL + b"\0" + cluster.encode()).digest()
    both = hashlib.scrypt(secret, salt=salt, n=1 << 15, r=8, p=3, maxmem=64 << 20, dklen=48)
    return ClusterSecret(both[:32], _TAG_MARK + both[32:].hex())
