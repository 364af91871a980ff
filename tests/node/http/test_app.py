"""The endpoints, without a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from node.http.app import create_app
from node.http.backend import HealthInfo
from protocols.chat import ChatDelta, ChatFailed, ChatLoading, ChatProgress, ChatStarted
from tests.support.fake_backend import FINISHED, MODEL, NOT_FOUND, REPORT, FakeBackend, events

Body = Callable[..., dict[str, object]]
CHAT = "/v1/chat/completions"


def stream_of(response: httpx.Response) -> list[Any]:
    """Return the decoded events of a stream, the closing [DONE] as text."""
    assert response.headers["content-type"].startswith("text/event-stream")
    payloads = [
        line.removeprefix("data: ")
        for line in response.content.decode().split("\n")
        if line.startswith("data: ")
    ]
    return [each if each == "[DONE]" else msgspec.json.decode(each) for each in payloads]


async def test_whole_answer(client: httpx.AsyncClient, chat_body: Body) -> None:
    response = await client.post(CHAT, json=chat_body())
    assert response.status_code == 200
    completion = response.json()
    assert completion.pop("id").startswith("chatcmpl-")
    assert completion.pop("created") > 0
    assert completion == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hé 🙂!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 3,
            "total_tokens": 103,
            "prompt_tokens_details": {"cached_tokens": 48},
        },
        "x_baton": msgspec.to_builtins(REPORT),
    }
    assert "Hé 🙂!".encode() in response.content


async def test_streamed_answer(client: httpx.AsyncClient, chat_body: Body) -> None:
    response = await client.post(CHAT, json=chat_body(stream=True))
    assert response.status_code == 200
    *chunks, done = stream_of(response)
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hé"},
        {"content": " 🙂!"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert ["x_baton" in chunk for chunk in chunks] == [False, False, False, True]
    assert chunks[-1]["x_baton"]["tokens"]["computed"] == 52
    assert all("usage" not in chunk for chunk in chunks)
    assert "🙂".encode() in response.content


async def test_usage_chunk_is_last_and_only_if_asked_for(
    client: httpx.AsyncClient, chat_body: Body
) -> None:
    options = {"include_usage": True}
    response = await client.post(CHAT, json=chat_body(stream=True, stream_options=options))
    *chunks, usage, done = stream_of(response)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 103
    assert [chunk["usage"] for chunk in chunks] == [None] * 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["nope", "refused"])
async def test_failure_before_the_first_event_has_its_status(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body, stream: bool, model: str
) -> None:
    backend.script = events(NOT_FOUND)
    response = await client.post(CHAT, json=chat_body(model=model, stream=stream))
    assert response.status_code == 404
    assert response.json() == {
        "error": {
            "message": "There is no model `nope`.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


@pytest.mark.parametrize(
    ("kind", "status", "type_"),
    [
        ("server_error", 500, "server_error"),
        ("unavailable_error", 503, "service_unavailable_error"),
        ("invalid_request_error", 400, "invalid_request_error"),
    ],
)
async def test_kinds_of_failure(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body, kind: Any, status: int, type_
) -> None:
    backend.script = events(ChatStarted(5), ChatFailed(status, kind, "So it is."))
    response = await client.post(CHAT, json=chat_body())
    assert (response.status_code, response.json()["error"]["type"]) == (status, type_)
    assert ("retry-after" in response.headers) == (status == 503)


async def test_failure_in_a_stream_is_its_last_event(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body
) -> None:
    failed = ChatFailed(500, "server_error", "The engine died.", code="engine_died")
    backend.script = events(ChatStarted(5), ChatDelta("A", 1), failed)
    *_, text, error = stream_of(await client.post(CHAT, json=chat_body(stream=True)))
    assert text["choices"][0]["delta"] == {"content": "A"}
    assert error["error"]["code"] == "engine_died"


async def test_progress_of_loading_is_a_comment(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body
) -> None:
    loading = ChatLoading("org/tiny-4bit", "den", "mlx", 0.25)
    backend.script = events(loading, ChatStarted(9), ChatDelta("A", 1), FINISHED)
    streamed = await client.post(CHAT, json=chat_body(stream=True))
    assert "\n\n: loading org/tiny-4bit on den with mlx, 25%\n\n" in streamed.text
    assert len(stream_of(streamed)) == 4
    whole = await client.post(CHAT, json=chat_body())
    assert whole.json()["choices"][0]["message"]["content"] == "A"


async def test_progress_of_a_prompt_is_a_comment(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body
) -> None:
    backend.script = events(ChatStarted(9), ChatProgress(3, 9), ChatDelta("A", 1), FINISHED)
    streamed = await client.post(CHAT, json=chat_body(stream=True))
    assert "\n\n: prompt 3/9\n\n" in streamed.text
    assert len(stream_of(streamed)) == 4
    whole = await client.post(CHAT, json=chat_body())
    assert whole.json()["choices"][0]["message"]["content"] == "A"


@pytest.mark.parametrize("stream", [False, True])
async def test_events_without_a_terminal_one_are_a_server_error(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body, stream: bool
) -> None:
    backend.script = events()
    response = await client.post(CHAT, json=chat_body(stream=stream))
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


async def test_defect_of_the_backend_is_a_server_error_that_tells_nothing(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body
) -> None:
    async def broken(request: object):
        raise ValueError("secret detail")
        yield

    backend.script = broken
    response = await client.post(CHAT, json=chat_body())
    assert response.status_code == 500
    assert "secret" not in response.text
    assert backend.left.is_set()


async def test_request_reaches_the_backend_once_and_its_context_is_left(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body
) -> None:
    backend.script = events(FINISHED)
    response = await client.post(CHAT, json=chat_body(x_baton={"prefill": "local"}))
    (request,) = backend.requests
    assert (request.id, request.prefill) == (response.json()["id"], "local")
    assert backend.left.is_set()


async def test_bad_body_is_an_error_object(
    backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body
) -> None:
    response = await client.post(CHAT, json=chat_body(n=3))
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["param"] == "n"
    assert not backend.requests


@pytest.mark.parametrize("path", [CHAT, "/v1/prefill/measure", "/v1/instances", "/v1/links"])
async def test_large_body_is_refused(backend: FakeBackend, path: str) -> None:
    transport = httpx.ASGITransport(create_app(backend, max_body_bytes=100))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        response = await client.post(path, content=b"x" * 101)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
        ("DELETE", "/v1/instances", 405),
        ("POST", "/v1/instances/mlx-1", 405),
        ("GET", "/v1/instances/unknown", 404),
        ("PUT", "/v1/links", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/", 404),
        ("GET", "/v1/models/org/unknown", 404),
    ],
)
async def test_wrong_paths_and_methods_are_error_objects(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (status == 405)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/instances", "GET, HEAD, POST"),
        ("/v1/instances/mlx-1", "DELETE, GET, HEAD"),
        ("/v1/links", "DELETE, GET, HEAD, POST"),
    ],
)
async def test_wrong_method_is_told_of_all_that_there_are(
    client: httpx.AsyncClient, path: str, methods: str
):
    response = await client.put(path)
    assert response.headers["allow"] == methods
    assert f"it answers {methods}." in response.json()["error"]["message"]


async def test_models(client: httpx.AsyncClient) -> None:
    listing = (await client.get("/v1/models")).json()
    assert listing["object"] == "list"
    assert [model["id"] for model in listing["data"]] == [MODEL, "org/other", "org/on-disk"]
    loaded = [model["x_baton"]["loaded"] for model in listing["data"]]
    assert loaded == [True, True, False]
    one = (await client.get(f"/v1/models/{MODEL}")).json()
    assert one == listing["data"][0]
    assert one == {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "baton",
        "x_baton": {"base_model": "org/base", "ready": True, "loaded": True},
    }


@pytest.mark.parametrize(("status", "code"), [("ok", 200), ("degraded", 200), ("starting", 503)])
async def test_health(
    backend: FakeBackend, client: httpx.AsyncClient, status: Any, code: int
) -> None:
    backend.status = HealthInfo(status, (MODEL,), "peer-a")
    response = await client.get("/health")
    assert response.status_code == code
    assert response.json() == {"status": status, "models": [MODEL], "peer_id": "peer-a"}


@pytest.mark.parametrize("document", [b'{"status":"ok"}', HealthInfo("ok", (), "p")])
async def test_cluster_document_is_passed_on(
    backend: FakeBackend, client: httpx.AsyncClient, document: Any
) -> None:
    backend.document = document
    response = await client.get("/v1/cluster")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["status"] == "ok"


async def test_measure(backend: FakeBackend, client: httpx.AsyncClient, chat_body: Body) -> None:
    response = await client.post("/v1/prefill/measure", json=chat_body())
    assert response.json() == {
        "model": MODEL,
        "prompt_tokens": 100,
        "engine": "vllm",
        "prefill_s": 0.25,
        "node": "peer-b",
    }
    refused = await client.post("/v1/prefill/measure", json=chat_body(model="refused"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
