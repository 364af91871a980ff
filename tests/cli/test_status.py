"""`baton status` against a served document."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.command import Baton
from tests.support.fake_backend import FakeBackend
from tests.support.terminal import baton_terminal

DOCUMENT = {
    "cluster": "home",
    "self": "peer-aaaaaaaa",
    "master": {"peer_id": "peer-bbbbbbbb", "term": 3 << 31 | 99, "round": 3},
    "nodes": [
        {
            "peer_id": "peer-aaaaaaaa",
            "host": "mac",
            "state": "alive",
            "roles": ["decode"],
            "engines": ["mlx"],
            "memory": {"total": 64 << 30, "free": 32 << 30},
            "interfaces": [],
            "instances": [
                {
                    "id": "i1",
                    "model": "org/[tiny]",
                    "base_model": "org/tiny",
                    "engine": "mlx",
                    "role": "decode",
                    "state": "failed",
                    "load": 2,
                    "reason": "no memory",
                }
            ],
            "unheard_of": {"of": "a newer version"},
        },
        {"peer_id": "peer-bbbbbbbb", "host": "spark", "state": "suspect"},
    ],
    "links": [
        {
            "from": "peer-aaaaaaaa",
            "to": "peer-bbbbbbbb",
            "class": "thunderbolt",
            "address": "169.254.1.1",
            "mb_per_s": None,
            "rtt_ms": 0.25,
            "in_use": True,
        }
    ],
}


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(cluster=json.dumps(DOCUMENT).encode())


def test_tables(baton: Baton, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = baton("status", "--api", api)
    assert result.exit_code == 0
    for shown in (
        "Cluster home, master spark (term 3)",
        "mac (this one)",
        "32.0 / 64.0 GiB",
        "org/[tiny]",
        "failed: no memory",
        "thunderbolt",
        "0.25 ms",
        "suspect",
    ):
        assert shown in result.stdout


def test_json_is_the_document_and_nothing_else(baton: Baton, api: str) -> None:
    result = baton("status", "--json", "--api", api)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == DOCUMENT
    assert result.stderr == ""


def test_api_from_the_environment(baton: Baton, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_API", api)
    assert baton("status", "--json").exit_code == 0


@pytest.mark.parametrize("document", [b"{}", b'{"nodes": [{}], "links": [{}], "master": null}'])
def test_document_of_another_version(
    baton: Baton, api: str, backend: FakeBackend, document: bytes
) -> None:
    backend.document = document
    result = baton("status", "--api", api)
    assert result.exit_code == 0
    assert "no master elected" in result.stdout


@pytest.mark.parametrize("document", [b'{"nodes": 5}', b"no json"])
def test_document_that_is_none(
    baton: Baton, api: str, backend: FakeBackend, document: bytes
) -> None:
    backend.document = document
    result = baton("status", "--json", "--api", api)
    assert result.exit_code == 1
    assert "not understood" in result.stderr
    assert result.stdout == ""


def test_nobody_answers(baton: Baton, dead_api: str) -> None:
    result = baton("status", "--json", "--api", dead_api)
    assert result.exit_code == 1
    assert f"no Baton node answers at {dead_api}; start one with `baton up`" in result.stderr
    assert result.stdout == ""


def test_watch_follows_until_interrupted(api: str, backend: FakeBackend) -> None:
    with baton_terminal("status", "--watch", "--api", api, kind="xterm") as terminal:
        terminal.wait_for("home")
        backend.document = b'{"cluster": "moved"}'
        terminal.wait_for("moved")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(10) == 0


@pytest.mark.parametrize("arguments", [("--json", "--watch"), ("--api", "nowhere"), ("--what",)])
def test_wrong_usage(baton: Baton, arguments: tuple[str, ...]) -> None:
    assert baton("status", *arguments).exit_code == 2
