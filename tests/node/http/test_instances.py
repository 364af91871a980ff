"""`/v1/instances` and `/v1/links`, without a network."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from node.http.backend import CreateInstance
from protocols.chat import ChatFailed
from tests.support.fake_backend import MODEL, FakeBackend

FAILED = ChatFailed(
    409, "invalid_request_error", "They do not fit.", code="mismatch", param="prefill"
)


async def test_instances_are_listed(client: httpx.AsyncClient) -> None:
    listing = (await client.get("/v1/instances")).json()
    assert listing["object"] == "list"
    assert [each["id"] for each in listing["data"]] == ["mlx-1", "vllm-1"]
    one = (await client.get("/v1/instances/vllm-1")).json()
    assert one == listing["data"][1]
    assert one == {
        "id": "vllm-1",
        "node": "peer-b",
        "host": "box",
        "model": MODEL,
        "base_model": "org/base",
        "engine": "vllm",
        "role": "prefill",
        "state": "loading",
        "progress": 0.5,
        "load": 0,
        "reason": "",
        "links": [],
    }


async def test_an_instance_is_created(backend: FakeBackend, client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "node": "peer-a", "engine": "mlx", "role": "decode"}
    response = await client.post("/v1/instances", json=body)
    assert response.status_code == 201
    document = response.json()
    assert (document["object"], document["id"], document["partners"]) == (
        "instance",
        "mlx-1",
        ["vllm-1"],
    )
    # It is there already when it is asked for again.
    again = await client.post("/v1/instances", json={"model": MODEL, "node": None})
    assert again.status_code == 200
    assert backend.created == [
        CreateInstance(MODEL, "peer-a", "mlx", "decode"),
        CreateInstance(MODEL),
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": MODEL, "engine": "llama.cpp"}, "engine"),
        ({"model": MODEL, "role": "master"}, "role"),
        ({"model": MODEL, "node": ""}, "node"),
        ({"model": MODEL, "gpu": 1}, "gpu"),
        ([], None),
    ],
)
async def test_bad_instances(
    backend: FakeBackend, client: httpx.AsyncClient, body: Any, param: str | None
) -> None:
    response = await client.post("/v1/instances", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert backend.created == []


async def test_an_instance_is_deleted(client: httpx.AsyncClient) -> None:
    response = await client.delete("/v1/instances/mlx-1")
    assert response.status_code == 200
    assert response.json() == {"id": "mlx-1", "object": "instance", "deleted": True}


async def test_links(backend: FakeBackend, client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/links")).json() == {"object": "list", "data": []}
    body = {"prefill": "vllm-1", "decode": "mlx-1"}
    made = await client.post("/v1/links", json=body)
    assert (made.status_code, made.json()) == (201, {**body, "ready": True})
    assert (await client.get("/v1/links")).json()["data"] == [{**body, "ready": True}]
    deleted = await client.request("DELETE", "/v1/links", json=body)
    assert deleted.json() == {**body, "object": "link", "deleted": True}
    assert backend.made == []


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "prefill"), ({"prefill": "a"}, "decode"), ({"prefill": "a", "decode": 1}, "decode")],
)
async def test_bad_links(client: httpx.AsyncClient, method: str, body: Any, param: str) -> None:
    response = await client.request(method, "/v1/links", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    malformed = await client.request(method, "/v1/links", content=b"{")
    assert malformed.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/instances", {"model": MODEL}),
        ("DELETE", "/v1/instances/mlx-1", None),
        ("POST", "/v1/links", {"prefill": "a", "decode": "b"}),
        ("DELETE", "/v1/links", {"prefill": "a", "decode": "b"}),
    ],
)
async def test_a_refusal_is_an_error_object(
    backend: FakeBackend, client: httpx.AsyncClient, method: str, path: str, body: Any
) -> None:
    backend.failure = FAILED
    response = await client.request(method, path, json=body)
    assert response.status_code == 409
    assert response.json()["error"] == {
        "message": "They do not fit.",
        "type": "invalid_request_error",
        "param": "prefill",
        "code": "mismatch",
    }
