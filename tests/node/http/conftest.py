"""A client of the application, without a network between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from node.http.app import create_app
from tests.support.fake_backend import FakeBackend


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def client(backend: FakeBackend) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(backend), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        yield client


@pytest.fixture
def chat_body() -> Callable[..., dict[str, object]]:
    """A valid body with some keys replaced."""

    def make(**changes: object) -> dict[str, object]:
        body = {"model": "org/tiny", "messages": [{"role": "user", "content": "Hi"}]}
        return body | changes

    return make
