"""Noise transport messages as records on the wire: sealing in batches, opening in place.

A record is a 2-byte big-endian length and that many bytes of ChaCha20-Poly1305 ciphertext
(https://github.com/libp2p/specs/tree/master/noise).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from libp2p.io.exceptions import ConnectionClosedError, DecryptionFailedException

__all__ = ["LENGTH_SIZE", "MAX_PLAINTEXT", "MAX_RECORD", "TAG_SIZE", "MessageCipher", "Sealer"]

TAG_SIZE: Final = 16
MAX_CIPHERTEXT: Final = 65535
MAX_PLAINTEXT: Final = MAX_CIPHERTEXT - TAG_SIZE
"""Bytes of plaintext in the longest noise message."""

LENGTH_SIZE: Final = 2
MAX_RECORD: Final = LENGTH_SIZE + MAX_CIPHERTEXT
_BATCH: Final = 17
"""Messages sealed per send: a yamux frame of the default size, and its header."""
_SEND_BUFFER: Final = _BATCH * MAX_RECORD
_SMALL: Final = 4096
"""Parts below this many bytes are copied together: a copy costs less than a message."""
_MAX_NONCE: Final = 2**64 - 1
"""Reserved by the Noise specification (section 5.1); no message may use it."""


class MessageCipher:
    """One direction's key and message counter."""

    def __init__(self, key: bytes, counter: int) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._counter = counter

    def _nonce(self) -> bytes:
        if self._counter >= _MAX_NONCE:
            raise ConnectionClosedError("the noise session has used up its nonces")
        return bytes(4) + self._counter.to_bytes(8, "little")

    def seal_into(self, plaintext: memoryview, ciphertext: memoryview) -> None:
        """Encrypt the next message into `ciphertext`, which is `TAG_SIZE` longer."""
        self._aead.encrypt_into(self._nonce(), plaintext, None, ciphertext)
        self._counter += 1

    def open_into(self, ciphertext: memoryview, plaintext: memoryview) -> None:
        """Decrypt the next message into `plaintext`.

        Raises:
            DecryptionFailedException: not what the peer sealed as its next message.
        """
        try:
            self._aead.decrypt_into(self._nonce(), ciphertext, None, plaintext)
        except InvalidTag as error:
            raise DecryptionFailedException("a noise message fails its authentication") from error
        self._counter += 1


class Sealer:
    """Packs parts of any sizes into as few noise messages as is cheap."""

    def __init__(self, cipher: MessageCipher) -> None:
        self._cipher = cipher
        self._sealed = memoryview(bytearray(_SEND_BUFFER))
        self._sealed_size = 0
        self._small = memoryview(bytearray(MAX_PLAINTEXT))
        self._small_size = 0

    def seal(self, parts: Iterable[memoryview]) -> Generator[memoryview, None, None]:
        """Yield batches of sealed messages; each is valid until the next is asked for."""
        self._sealed_size = self._small_size = 0
        for part in parts:
            rest = part
            while len(rest) >= _SMALL:
                yield from self._put_small()
                yield from self._put(rest[:MAX_PLAINTEXT])
                rest = rest[MAX_PLAINTEXT:]
            if self._small_size + len(rest) > MAX_PLAINTEXT:
                yield from self._put_small()
            self._small[self._small_size : self._small_size + len(rest)] = rest
            self._small_size += len(rest)
        yield from self._put_small()
        if self._sealed_size:
            yield self._sealed[: self._sealed_size]

    def _put_small(self) -> Generator[memoryview, None, None]:
        if self._small_size:
            small, self._small_size = self._small[: self._small_size], 0
            yield from self._put(small)

    def _put(self, plaintext: memoryview) -> Generator[memoryview, None, None]:
        size = len(plaintext) + TAG_SIZE
        if self._sealed_size + LENGTH_SIZE + size > _SEND_BUFFER:
            yield self._sealed[: self._sealed_size]
            self._sealed_size = 0
        start = self._sealed_size
        body = start + LENGTH_SIZE
        self._sealed[start:body] = size.to_bytes(LENGTH_SIZE, "big")
        self._cipher.seal_into(plaintext, self._sealed[body : body + size])
        self._sealed_size = body + size
