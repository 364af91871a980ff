"""Noise transport messages as records on the wire: sealing in batches, opening in place.

A record is a 2-byte big-endian length and that many bytes of ciphertext and tag
(https://github.com/libp2p/specs/tree/master/noise).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from cryptography.exceptions import InvalidTag
from libp2p.io.exceptions import ConnectionClosedError, DecryptionFailedException

from node.transport.noise_suites import CHACHA_POLY, Suite

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
_KEY_SIZE: Final = 32


class MessageCipher:
    """One direction's key and message counter.

    Args:
        key: 32 bytes, as the handshake has left it.
        counter: number of the next message.
        suite: what the handshake was made with.
    """

    def __init__(self, key: bytes, counter: int, suite: Suite = CHACHA_POLY) -> None:
        self._suite = suite
        self._aead = suite.aead(key)
        self._counter = counter

    def _next_nonce(self) -> bytes:
        """Return the nonce of the next message, whose key is in place once this returns."""
        if self._counter >= _MAX_NONCE:
            raise ConnectionClosedError("the noise session has used up its nonces")
        every = self._suite.rekey_every
        if every is not None and self._counter and self._counter % every == 0:
            sealed = self._aead.encrypt(self._nonce(_MAX_NONCE), bytes(_KEY_SIZE), None)
            self._aead = self._suite.aead(sealed[:_KEY_SIZE])
        return self._nonce(self._counter)

    def _nonce(self, number: int) -> bytes:
        return bytes(4) + number.to_bytes(8, self._suite.counter_order)

    def seal_into(self, plaintext: memoryview, ciphertext: memoryview) -> None:
        """Encrypt the next message into `ciphertext`, which is `TAG_SIZE` longer."""
        nonce = self._next_nonce()
        self._aead.encrypt_into(nonce, plaintext, None, ciphertext)
        self._counter += 1

    def open_into(self, ciphertext: memoryview, plaintext: memoryview) -> None:
        """Decrypt the next message into `plaintext`.

        Raises:
            DecryptionFailedException: not what the peer sealed as its next message.
        """
        nonce = self._next_nonce()
        try:
            self._aead.decrypt_into(nonce, ciphertext, None, plaintext)
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
