"""The example in docs/kv-prefill.md is what the code sends and takes."""

import re
from pathlib import Path

import numpy as np
import pytest

from protocols.cache import AttentionLayer, CacheLayout
from protocols.kv_prefill.client import ChunkArrived, Client, Completed
from protocols.kv_prefill.codec import decode
from protocols.kv_prefill.messages import (
    Accept,
    Done,
    Request,
    Timings,
    hash_tokens,
    pack_tokens,
)
from protocols.kv_prefill.server import Server

PAGE = Path(__file__).parents[3] / "docs" / "kv-prefill.md"
LAYOUT = CacheLayout("bfloat16", (AttentionLayer(kv_heads=1, k_dim=2, v_dim=2),), "f00d")
TOKENS = pack_tokens([1, 2, 3])
REQUEST = Request(
    id="r1",
    model="m",
    fingerprint="f00d",
    tokens=TOKENS,
    tokens_hash=hash_tokens(TOKENS),
    start=0,
    end=2,
    dtypes=("bfloat16",),
    codecs=("planes", "raw"),
    deadline_ms=60000,
)


@pytest.fixture(scope="module")
def blocks() -> list[bytes]:
    """The bytes of the page's dumps: request, accept, chunk, payload, done."""
    example = PAGE.read_text().split("## Example")[1]
    dumps = re.findall(r"```\n(.*?)```", example, re.DOTALL)
    return [b"".join(bytes.fromhex(line[:47]) for line in dump.splitlines()) for dump in dumps]


def test_the_request(blocks: list[bytes]) -> None:
    assert Client(REQUEST, LAYOUT).request_frame == blocks[0]
    server = Server()
    server.feed(blocks[0][:4])
    assert server.feed(blocks[0][4:]) == REQUEST
    assert server.accept(Accept(LAYOUT, "e1", 0, "planes", 0.0)) == blocks[1]


def test_the_answer(blocks: list[bytes]) -> None:
    client = Client(REQUEST, LAYOUT)
    stream, at, events = b"".join(blocks[1:]), 0, []
    while client.wanted:
        wanted = client.wanted
        events.append(client.feed(stream[at : at + wanted]))
        at += wanted
    assert at == len(stream)
    _, arrived, completed = [event for event in events if event is not None]
    assert isinstance(arrived, ChunkArrived)
    keys, values = decode(arrived.payload, arrived.chunk, LAYOUT)
    floats = [(a.astype(np.uint32) << 16).view(np.float32).ravel().tolist() for a in (keys, values)]
    assert floats == [[1, 2, 3, 4], [-1, -2, -3, -4]]
    assert completed == Completed(Done(1, 16, 16, Timings(0.0, 0.5, 0.25, 0.5)))
