"""What a real node makes of bad requests: an OpenAI-style error each, and it goes on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from bench.nodes import LocalNode
from tests.support.api import MODEL, chat, post

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

HELLO = [{"role": "user", "content": "hello"}]
LONG = "a lighthouse keeper " * 4000

BAD: list[tuple[str, Any, int, str | None, str | None]] = [
    ("unknown model", {"model": "nope", "messages": HELLO}, 404, "model", "model_not_found"),
    ("no messages", {"model": MODEL, "messages": []}, 400, "messages", None),
    ("messages left out", {"model": MODEL}, 400, "messages", None),
    ("model left out", {"messages": HELLO}, 400, "model", None),
    ("malformed JSON", b'{"model": ', 400, None, None),
    ("no JSON at all", b"\xff\xfe\x00", 400, None, None),
    ("a list", [1, 2], 400, None, None),
    ("wrong type", {"model": MODEL, "messages": "hello"}, 400, "messages", None),
    (
        "wrong content",
        {"model": MODEL, "messages": [{"role": "user", "content": 7}]},
        400,
        None,
        None,
    ),
    (
        "wrong role",
        {"model": MODEL, "messages": [{"role": "king", "content": "x"}]},
        400,
        None,
        None,
    ),
    (
        "too long",
        {"model": MODEL, "messages": [{"role": "user", "content": LONG}]},
        400,
        "messages",
        "context_length_exceeded",
    ),
    ("too hot", {"model": MODEL, "messages": HELLO, "temperature": 9}, 400, "temperature", None),
    ("no room", {"model": MODEL, "messages": HELLO, "max_tokens": -1}, 400, "max_tokens", None),
    ("several", {"model": MODEL, "messages": HELLO, "n": 3}, 400, "n", None),
    (
        "unsupported",
        {"model": MODEL, "messages": HELLO, "response_format": {"type": "json_object"}},
        400,
        "response_format",
        None,
    ),
    ("made up", {"model": MODEL, "messages": HELLO, "frobnicate": 1}, 400, "frobnicate", None),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("at", [0, 1], ids=["prefill-node", "decode-node"])
@pytest.mark.parametrize(
    ("document", "status", "param", "code"),
    [pytest.param(*rest, id=name.replace(" ", "-")) for name, *rest in BAD],
)
def test_bad_request(
    pair: tuple[LocalNode, LocalNode],
    document: Any,
    status: int,
    param: str | None,
    code: str | None,
    at: int,
    stream: bool,
):
    if isinstance(document, dict) and stream:
        document = {**document, "stream": True}
    response = post(pair[at], document)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert len(error["message"]) > 10
    assert {"message", "type", "param", "code"} <= set(error)
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code


def test_the_node_goes_on_after_all_that(pair: tuple[LocalNode, LocalNode]):
    for node in pair:
        assert httpx.get(f"http://{node.api}/health", timeout=10).json()["status"] == "ok"
        assert chat(node, "Hello", max_tokens=2)[0]
