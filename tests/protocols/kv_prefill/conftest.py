"""A request and its answers, for the tests of both state machines."""

import msgspec
import pytest

from protocols.kv_prefill.messages import Accept, Done, Request, Timings, hash_tokens, pack_tokens
from tests.support.caches import HYBRID


@pytest.fixture(scope="session")
def request_() -> Request:
    """Asks for 20 of 30 tokens of the hybrid layout, in another dtype if need be."""
    tokens = pack_tokens(list(range(30)))
    return Request(
        id="r",
        model="m",
        fingerprint=HYBRID.fingerprint,
        tokens=tokens,
        tokens_hash=hash_tokens(tokens),
        start=4,
        end=24,
        dtypes=("bfloat16", "float16", "float32"),
        codecs=("planes", "raw"),
        deadline_ms=1000,
    )


@pytest.fixture(scope="session")
def accept() -> Accept:
    """Accepts it, in a dtype that is not the receiver's."""
    layout = msgspec.structs.replace(HYBRID, dtype="float16")
    return Accept(layout, epoch="e", cached=2, codec="planes", tokens_per_s=100.0)


@pytest.fixture(scope="session")
def done() -> Done:
    return Done(4, 1000, 900, Timings(0.0, 0.5, 0.1, 0.2))
