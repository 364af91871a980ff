"""The ciphers that noise messages are sealed with.

Every libp2p peer speaks noise with ChaCha20-Poly1305, the cheaper one where a processor has no
instructions for AES. Those that Baton is for have them, and AES-GCM then costs a third to a fifth,
on the very core that moves the cache. So Baton's connections for bulk prefer `PROTOCOL_AES`, which
is libp2p's noise (https://github.com/libp2p/specs/tree/master/noise) with another cipher function,
both as the Noise specification defines them (https://noiseprotocol.org/noise.html, section 12).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import Final, Literal, Protocol

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from libp2p.custom_types import TProtocol

__all__ = ["AES_GCM", "CHACHA_POLY", "PROTOCOL_AES", "Aead", "Suite", "aes_pays"]

PROTOCOL_AES: Final = TProtocol("/baton/noise-aesgcm/1")

_TRIAL_BYTES: Final = 1 << 16
"""About what the longest noise message holds."""
_TRIALS: Final = 5


class Aead(Protocol):
    """Encrypts and decrypts with one key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        """Return the ciphertext of `data` and its tag."""
        ...

    def encrypt_into(
        self, nonce: bytes, data: memoryview, associated_data: bytes | None, buf: memoryview
    ) -> int:
        """Put the ciphertext of `data` and its tag into `buf`, which is as long as both."""
        ...

    def decrypt_into(
        self, nonce: bytes, data: memoryview, associated_data: bytes | None, buf: memoryview
    ) -> int:
        """Put the plaintext of `data` into `buf`, or raise `InvalidTag`."""
        ...


class Suite(msgspec.Struct, frozen=True):
    """What the two ends of a session have to agree on to read each other's messages."""

    noise_name: bytes
    """Of the handshake, as the Noise specification spells it."""
    aead: Callable[[bytes], Aead]
    """Makes the cipher of a key of 32 bytes."""
    counter_order: Literal["little", "big"]
    """How a nonce holds a message's number."""
    rekey_every: int | None = None
    """Messages after which each direction changes its key (section 11.3); None for never."""


CHACHA_POLY: Final = Suite(b"Noise_XX_25519_ChaChaPoly_SHA256", ChaCha20Poly1305, "little")
AES_GCM: Final = Suite(
    b"Noise_XX_25519_AESGCM_SHA256",
    AESGCM,
    "big",
    # 64 GiB of full messages, 2^32 blocks: what leaks of a key's use stays far below what TLS 1.3
    # allows (RFC 8446, section 5.5).
    rekey_every=1 << 20,
)


@cache
def aes_pays() -> bool:
    """Whether AES-GCM is the faster one on this processor, as tried once for a millisecond."""
    return _seconds(AES_GCM) < _seconds(CHACHA_POLY)


def _seconds(suite: Suite) -> float:
    """Return the best time of sealing `_TRIAL_BYTES`."""
    aead, nonce, plaintext = suite.aead(os.urandom(32)), bytes(12), bytes(_TRIAL_BYTES)
    times: list[float] = []
    for _ in range(_TRIALS):
        began = time.perf_counter()
        aead.encrypt(nonce, plaintext, None)
        times.append(time.perf_counter() - began)
    return min(times)
