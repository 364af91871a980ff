"""Who this node is: its key, its incarnation and its election term, kept in the data directory."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.serialization import deserialize_private_key
from libp2p.peer.id import ID

from node.errors import AlreadyRunning, CorruptDataDirectory, UnusableDataDirectory

__all__ = ["Identity", "open_identity"]

_KEY_FILE: Final = "identity.key"
_STATE_FILE: Final = "state.json"
_LOCK_FILE: Final = "lock"


class _State(msgspec.Struct, frozen=True):
    incarnation: int = 0
    term: int = 0


class Identity:
    """The node's key pair and the two numbers that must survive a restart.

    Made by `open_identity`, which also holds the lock that makes it the only one of its directory.

    Attributes:
        key_pair: the Ed25519 key pair.
        peer_id: the peer id in base58, as it is shown and gossiped.
        incarnation: larger than that of any earlier start.
        term: the highest election term persisted so far.
    """

    def __init__(self, directory: Path, key_pair: KeyPair, state: _State) -> None:
        self._directory = directory
        self._state = state
        # The term and the incarnation are persisted by threads of their own, into one file.
        self._saving = threading.Lock()
        self.key_pair = key_pair
        self.peer_id: str = ID.from_pubkey(key_pair.public_key).to_base58()

    @property
    def incarnation(self) -> int:
        return self._state.incarnation

    @property
    def term(self) -> int:
        return self._state.term

    def save_term(self, term: int) -> None:
        """Persist a higher election term; a lower one is ignored. Blocks on the disk.

        Raises:
            UnusableDataDirectory: the disk does not take it.
        """
        with self._saving:
            if term > self._state.term:
                self._save(msgspec.structs.replace(self._state, term=term))

    def raise_incarnation(self, heard: int) -> int:
        """Persist an incarnation above one that peers have heard of, and return it.

        They have if the state file was lost and the clock is behind. Blocks on the disk.

        Raises:
            UnusableDataDirectory: the disk does not take it.
        """
        with self._saving:
            if heard >= self._state.incarnation:
                self._save(msgspec.structs.replace(self._state, incarnation=heard + 1))
            return self._state.incarnation

    def _save(self, state: _State) -> None:
        try:
            _write_atomically(self._directory / _STATE_FILE, msgspec.json.encode(state))
        except OSError as error:
            raise _unusable(self._directory, error) from error
        self._state = state

    def _begin(self) -> None:
        # The clock keeps incarnations growing even if the state file was lost.
        incarnation = max(self._state.incarnation + 1, int(time.time()))
        self._save(msgspec.structs.replace(self._state, incarnation=incarnation))


@contextmanager
def open_identity(directory: Path) -> Iterator[Identity]:
    """Lock the data directory, create what it lacks, and start a new incarnation.

    Blocks on the disk: call it before the event loop, or in a thread.

    Raises:
        AlreadyRunning: another process holds the directory's lock.
        CorruptDataDirectory: the key or the state makes no sense.
        UnusableDataDirectory: it cannot be made, read or written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (directory / _LOCK_FILE).open("a+b")
    except OSError as error:
        raise _unusable(directory, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(
                f"another node uses the data directory {directory}",
                "stop it, or give this one a directory of its own with --data-dir",
            ) from None
        try:
            identity = Identity(directory, _load_or_create_key(directory), _load_state(directory))
            identity._begin()
        except OSError as error:
            raise _unusable(directory, error) from error
        yield identity


def _unusable(directory: Path, error: OSError) -> UnusableDataDirectory:
    return UnusableDataDirectory(
        f"the data directory {directory} cannot be used ({error.strerror or error})",
        "make it one that you may write to, or name another with --data-dir",
    )


def _load_or_create_key(directory: Path) -> KeyPair:
    path = directory / _KEY_FILE
    try:
        serialized = path.read_bytes()
    except FileNotFoundError:
        key_pair = create_new_key_pair()
        _write_atomically(path, key_pair.private_key.serialize())
        return key_pair
    try:
        private_key = deserialize_private_key(serialized)
        return KeyPair(private_key, private_key.get_public_key())
    except Exception as error:
        raise CorruptDataDirectory(
            f"{path} holds no key ({error})",
            "restore it from a backup, or remove it to become a new node",
        ) from error


def _load_state(directory: Path) -> _State:
    path = directory / _STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return _State()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptDataDirectory(
            f"{path} cannot be read ({error})",
            "remove it: the node then takes its incarnation from the clock",
        ) from error


def _write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by a file of mode 0600 that is on the disk before this returns."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
