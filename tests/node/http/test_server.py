"""A real server on the loopback address, and clients that leave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import httpx
import msgspec
import pytest
import trio
import trio.testing
from loguru import logger

from node.errors import BatonError, PortInUse
from node.http.app import create_app
from node.http.backend import HealthInfo
from node.http.server import serve
from protocols.chat import ChatDelta, ChatRequest, ChatStarted
from tests.support.fake_backend import FINISHED, FakeBackend, stalls_after

Body = Callable[..., dict[str, object]]
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def serving(backend: FakeBackend, **options: float) -> AsyncIterator[int]:
    """Serve on a free port, which is yielded."""
    async with trio.open_nursery() as nursery:
        app = create_app(backend, **options)  # pyright: ignore[reportArgumentType]
        _, port = await nursery.start(serve, app, "127.0.0.1", 0)
        yield port
        nursery.cancel_scope.cancel()


def http_post(path: str, body: object) -> bytes:
    content = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nHost: node\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def receive_until(stream: trio.SocketStream, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        piece = await stream.receive_some()
        assert piece, received
        received += piece
    return received


@pytest.fixture(autouse=True)
async def deadline() -> AsyncIterator[None]:
    with trio.fail_after(20):
        yield


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_during_prefill_cancels(chat_body: Body, stream: bool) -> None:
    backend = FakeBackend(stalls_after(ChatStarted(9)))
    async with serving(backend) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(http_post(CHAT, chat_body(stream=stream)))
        await backend.opened.wait()
        await client.aclose()
        with trio.fail_after(1):
            await backend.left.wait()


async def test_client_that_leaves_before_the_first_event_cancels(chat_body: Body) -> None:
    backend = FakeBackend(stalls_after())
    async with serving(backend) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(http_post(CHAT, chat_body(stream=True)))
        await backend.opened.wait()
        await client.aclose()
        with trio.fail_after(1):
            await backend.left.wait()


async def test_client_that_leaves_during_decode_cancels(chat_body: Body) -> None:
    async def endless(request: ChatRequest):
        yield ChatStarted(9)
        while True:
            yield ChatDelta("word ", 1)
            await trio.sleep(0.01)

    backend = FakeBackend(endless)
    async with serving(backend) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(http_post(CHAT, chat_body(stream=True)))
        await receive_until(client, b"word")
        await client.aclose()
        with trio.fail_after(1):
            await backend.left.wait()


async def test_client_that_leaves_a_measurement_cancels_it(chat_body: Body) -> None:
    backend = FakeBackend()
    backend.measure_stalls = True
    async with serving(backend) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(http_post("/v1/prefill/measure", chat_body()))
        await backend.opened.wait()
        await client.aclose()
        with trio.fail_after(1):
            await backend.left.wait()


async def test_client_that_leaves_while_sending_disturbs_nobody(chat_body: Body) -> None:
    backend = FakeBackend()
    async with serving(backend) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(http_post(CHAT, chat_body())[:-5])
        await client.aclose()
        async with httpx.AsyncClient(trust_env=False) as other:
            assert (await other.get(f"http://127.0.0.1:{port}/health")).status_code == 200
    assert not backend.requests


async def test_silent_prefill_is_kept_alive(chat_body: Body) -> None:
    backend = FakeBackend(stalls_after(ChatStarted(9)))
    async with serving(backend, keep_alive_s=0.05) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(http_post(CHAT, chat_body(stream=True)))
        received = await receive_until(client, b": keep-alive\n\n")
        assert b"200" in received.split(b"\r\n")[0]
        await client.aclose()


async def test_connection_is_used_again_and_requests_run_side_by_side(chat_body: Body) -> None:
    async with serving(FakeBackend()) as port:
        url = f"http://127.0.0.1:{port}{CHAT}"
        async with httpx.AsyncClient(trust_env=False) as client, trio.open_nursery() as nursery:
            answers: list[str] = []

            async def ask() -> None:
                for stream in (False, True):
                    response = await client.post(url, json=chat_body(stream=stream))
                    answers.append(response.text)

            for _ in range(5):
                nursery.start_soon(ask)
        assert len(answers) == 10
        assert all("🙂" in answer for answer in answers)


async def test_large_body_over_the_network_is_answered() -> None:
    async with serving(FakeBackend(), max_body_bytes=100_000) as port:
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.post(f"http://127.0.0.1:{port}{CHAT}", content=b"x" * 700_000)
        assert response.status_code == 413


async def test_body_far_over_the_limit_is_not_read_to_its_end() -> None:
    async with serving(FakeBackend(), max_body_bytes=1_000) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000000\r\n\r\n"
        await client.send_all(head.encode() + b"x" * 50_000)
        await receive_until(client, b"request_too_large")
        await client.aclose()


async def test_shutdown_lets_running_requests_end(chat_body: Body) -> None:
    release = trio.Event()

    async def script(request: ChatRequest):
        yield ChatStarted(9)
        await release.wait()
        yield FINISHED

    backend, shutdown = FakeBackend(script), trio.Event()
    async with trio.open_nursery() as nursery:
        app = create_app(backend)
        server = partial(serve, shutdown=shutdown, grace_s=10)
        _, port = await nursery.start(server, app, "127.0.0.1", 0)
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(http_post(CHAT, chat_body(stream=True)))
        await backend.opened.wait()
        shutdown.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(OSError):
            await trio.open_tcp_stream("127.0.0.1", port)
        release.set()
        assert b"[DONE]" in await receive_until(client, b"[DONE]")
        await client.aclose()


async def test_client_that_stops_reading_does_not_hold_up_the_end(chat_body: Body) -> None:
    async def flood(request: ChatRequest):
        yield ChatStarted(9)
        while True:
            yield ChatDelta("x" * 100_000, 1)

    backend = FakeBackend(flood)
    async with serving(backend) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(http_post(CHAT, chat_body(stream=True)))
        await receive_until(client, b"xxx")
        await trio.sleep(0.3)
    assert backend.left.is_set()
    await client.aclose()


async def test_defect_of_ours_is_an_error_object_and_in_the_log() -> None:
    class Broken(FakeBackend):
        def health(self) -> HealthInfo:
            raise ValueError("a defect")

    records: list[str] = []
    logged = trio.Event()

    def write(record: str) -> None:
        records.append(record)
        logged.set()

    sink = logger.add(write, level="ERROR")
    async with serving(Broken()) as port, httpx.AsyncClient(trust_env=False) as client:
        response = await client.get(f"http://127.0.0.1:{port}/health")
        await logged.wait()
    logger.remove(sink)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "ValueError: a defect" in "".join(records)


async def test_taken_port_is_told() -> None:
    async with serving(FakeBackend()) as port:
        with pytest.raises(PortInUse, match=rf"127\.0\.0\.1:{port}.*--api"):
            await serve(create_app(FakeBackend()), "127.0.0.1", port)


async def test_foreign_address_is_told() -> None:
    with pytest.raises(BatonError, match=r"192\.0\.2\.1:8000"):
        await serve(create_app(FakeBackend()), "192.0.2.1", 8000)
