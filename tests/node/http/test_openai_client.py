"""OpenAI's own client as an independent judge of what the API sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import trio

from node.http.app import create_app
from node.http.server import serve
from protocols.chat import ChatDelta, ChatFailed, ChatStarted
from tests.support.fake_backend import MODEL, NOT_FOUND, FakeBackend, events

HI: Any = {"role": "user", "content": "Hi"}


@pytest.fixture
async def server(backend: FakeBackend) -> AsyncIterator[openai.OpenAI]:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            _, port = await nursery.start(serve, create_app(backend), "127.0.0.1", 0)
            yield openai.OpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
            )
            nursery.cancel_scope.cancel()


async def test_whole(server: openai.OpenAI) -> None:
    def ask() -> Any:
        return server.chat.completions.create(model=MODEL, messages=[HI], temperature=0)

    completion = await trio.to_thread.run_sync(ask)
    assert completion.choices[0].message.content == "Hé 🙂!"
    assert completion.usage.prompt_tokens_details.cached_tokens == 48
    assert completion.x_baton["prefill"] == "remote"


async def test_streamed_with_usage(server: openai.OpenAI) -> None:
    def ask():
        stream = server.chat.completions.create(
            model=MODEL, messages=[HI], stream=True, stream_options={"include_usage": True}
        )
        return list(stream)

    *chunks, last = await trio.to_thread.run_sync(ask)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hé 🙂!"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.total_tokens == 103


async def test_answers_go_back_in(server: openai.OpenAI, backend: FakeBackend) -> None:
    """The message that the client parsed is accepted as a part of the next conversation."""

    def ask():
        first = server.chat.completions.create(model=MODEL, messages=[HI])
        history: Any = [HI, first.choices[0].message.model_dump(), HI]
        server.chat.completions.create(model=MODEL, messages=history)

    await trio.to_thread.run_sync(ask)
    assert backend.requests[1].messages[1].content == "Hé 🙂!"


async def test_errors_are_raised_as_what_they_are(
    server: openai.OpenAI, backend: FakeBackend
) -> None:
    def ask(**options: Any) -> Any:
        return server.chat.completions.create(model=MODEL, messages=[HI], **options)

    def ask_streamed():
        return list(ask(stream=True))

    with pytest.raises(openai.BadRequestError) as bad:
        await trio.to_thread.run_sync(lambda: ask(n=2))
    assert bad.value.param == "n"
    backend.script = events(NOT_FOUND)
    with pytest.raises(openai.NotFoundError) as missing:
        await trio.to_thread.run_sync(ask)
    assert missing.value.code == "model_not_found"
    failed = ChatFailed(500, "server_error", "The engine died.")
    backend.script = events(ChatStarted(5), ChatDelta("A", 1), failed)
    with pytest.raises(openai.APIError, match="The engine died"):
        await trio.to_thread.run_sync(ask_streamed)


async def test_models(server: openai.OpenAI) -> None:
    models = await trio.to_thread.run_sync(lambda: list(server.models.list()))
    assert [model.id for model in models] == [MODEL, "org/other", "org/on-disk"]
    one = await trio.to_thread.run_sync(server.models.retrieve, MODEL)
    assert one.owned_by == "baton"
