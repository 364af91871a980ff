"""A node's API to talk to, and a way to run commands."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Baton, run_baton
from tests.support.fake_backend import FakeBackend
from tests.support.live_api import live_api


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the real user's directories."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("BATON_API", "BATON_MODELS", "BATON_CONFIG", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def baton() -> Baton:
    return run_baton


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def api(backend: FakeBackend) -> Iterator[str]:
    with live_api(backend) as address:
        yield address


@pytest.fixture
def dead_api() -> Iterator[str]:
    """An address at which nothing listens, kept from others by a socket that only is bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
