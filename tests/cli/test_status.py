"""`baton status` against a served document."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest
from rich.console import Console

from cli.cluster_document import decode_cluster
from cli.status_tables import render
from tests.support.command import Baton
from tests.support.fake_backend import FakeBackend
from tests.support.live_api import live_api
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
        {"peer_id": "peer-bbbbbbbb", "host": "spark", "state": "suspect", "last_seen_s": 6.1},
    ],
    "links": [
        {
            "from": "peer-aaaaaaaa",
            "to": "peer-bbbbbbbb",
            "class": "thunderbolt",
            "address": "/ip4/169.254.1.1/tcp/4001",
            "mb_per_s": None,
            "rtt_ms": 0.25,
            "in_use": True,
            "interface": "en5",
        }
    ],
    "links_missing_from": ["peer-bbbbbbbb"],
}


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(cluster=json.dumps(DOCUMENT).encode())


def lines(document: dict[str, Any], *, width: int = 80, all_links: bool = False) -> list[str]:
    """Return what is shown of a document."""
    console = Console(width=width, record=True, file=io.StringIO())
    cluster = decode_cluster(json.dumps(document).encode())
    console.print(render(cluster, all_links=all_links))
    return console.export_text().splitlines()


def big_cluster(count: int) -> dict[str, Any]:
    """Return a cluster of machines with one name, a full mesh of links, and long model names."""
    peers = [f"12D3KooWMachine{number:06}" for number in range(count)]
    model = "mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit-DWQ"
    instance = {"model": model, "engine": "mlx", "role": "decode", "state": "ready", "load": 12}
    rates = {"prefill_tokens_per_s": 1700.4, "decode_tokens_per_s": 81.2}
    link = {"class": "thunderbolt", "mb_per_s": 3120.4, "rtt_ms": 0.31, "in_use": True}
    return {
        "cluster": "home",
        "self": peers[0],
        "master": {"peer_id": peers[1], "term": 1, "round": 17},
        "nodes": [
            {
                "peer_id": peer,
                "host": "Mac-Studio.local",
                "state": "alive",
                "roles": ["prefill", "decode"],
                "engines": ["mlx", "vllm"],
                "memory": {"total": 512 << 30, "free": 480 << 30},
                "instances": [instance | rates],
            }
            for peer in peers
        ],
        "links": [
            link | {"from": one, "to": other, "address": "/ip4/169.254.31.7/tcp/50123"}
            for one in peers
            for other in peers
            if one != other
        ],
    }


def test_tables(baton: Baton, api: str) -> None:
    result = baton("status", "--api", api)
    assert result.exit_code == 0
    for shown in (
        "Cluster home, 1 of 2 nodes, master spark (round 3)",
        "mac (here)",
        "32.0 / 64.0 GiB",
        "suspect 6 s",
        "org/[tiny]",
        "org/[tiny] on mac failed: no memory",
        "thunderbolt",
        "en5   169.254.1.1",
        "0.25 ms",
        "links not told in time by: spark",
    ):
        assert shown in result.stdout


def test_ten_machines_of_one_name_fit_on_a_terminal() -> None:
    document = big_cluster(10)
    shown = lines(document)
    assert max(map(len, shown)) <= 80
    assert len(shown) < 45
    assert any("master Mac-Studio/0001 (round 17)" in line for line in shown)
    for number in range(10):
        name = f"Mac-Studio/{number:04}"
        (row,) = (line for line in shown if line.startswith(name) and "GiB" in line)
        assert "480.0 / 512.0 GiB" in row
    assert sum("thunderbolt" in line for line in shown) == 9
    assert any("81 told of by the other nodes: --links" in line for line in shown)


def test_links_on_demand() -> None:
    document = big_cluster(3)
    document["links"][0]["in_use"] = False
    shown = "\n".join(lines(document, width=160, all_links=True))
    assert shown.count("169.254.31.7") == 6
    assert shown.count("yes") == 5
    assert "1 in reserve, 4 told of by the other nodes" in "\n".join(lines(document))


def test_a_lost_node_is_told_from_one_that_is_there() -> None:
    document = big_cluster(2)
    document["nodes"][1] |= {"state": "gone", "last_seen_s": 312.0}
    document["nodes"][1]["instances"][0]["state"] = "unreachable"
    shown = "\n".join(lines(document))
    assert "1 of 2 nodes" in shown
    assert "gone 5 min" in shown
    assert "unreachable" in shown


def test_names_from_other_machines_do_not_reach_the_terminal_as_commands() -> None:
    document = big_cluster(2)
    evil = "\x1b]0;owned\x07\x9b2J\r\u202e[bold]"
    document["cluster"] = document["nodes"][1]["host"] = document["nodes"][1]["state"] = evil
    document["nodes"][1]["instances"][0] |= {"model": evil, "reason": evil, "state": evil}
    document["links"][0] |= {"class": evil, "interface": evil, "address": evil}
    document["nodes"][1] |= {"roles": [evil], "engines": [evil], "version": evil}
    for all_links in (False, True):
        shown = lines(document, width=200, all_links=all_links)
        assert all(line.isprintable() for line in shown)
        assert any("[bold]" in line for line in shown)


def test_versions_are_shown_when_they_differ() -> None:
    document = big_cluster(2)
    assert "version" not in "\n".join(lines(document))
    document["nodes"][1]["version"] = "0.2.0"
    assert "0.2.0" in "\n".join(lines(document))


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


def test_watch_outlives_the_node(backend: FakeBackend) -> None:
    with ExitStack() as watching:
        with live_api(backend) as api:
            terminal = watching.enter_context(
                baton_terminal("status", "--watch", "--api", api, kind="xterm")
            )
            terminal.wait_for("home")
        terminal.wait_for(f"no Baton node answers at {api}")
        terminal.wait_for("home")
        backend.document = b'{"cluster": "back again"}'
        with live_api(backend, port=int(api.rpartition(":")[2])):
            terminal.wait_for("back again")
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.process.wait(10) == 0


@pytest.mark.parametrize("as_json", [True, False])
def test_watch_into_a_pipe(api: str, backend: FakeBackend, as_json: bool) -> None:
    command = [sys.executable, "-m", "cli.main", "status", "--watch", "--api", api]
    options = ["--json"] if as_json else []
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            said = [watching.stdout.readline()]
            backend.document = b'{"cluster": "moved"}'
            while "moved" not in said[-1]:
                said.append(watching.stdout.readline())
                assert said[-1], "it ended"
            watching.send_signal(signal.SIGINT)
            assert watching.wait(10) == 0
        finally:
            watching.kill()
    assert "\x1b" not in "".join(said)
    if as_json:
        assert json.loads(said[0]) == DOCUMENT
        assert json.loads(said[-1]) == {"cluster": "moved"}


@pytest.mark.parametrize("arguments", [("--api", "nowhere"), ("--what",)])
def test_wrong_usage(baton: Baton, arguments: tuple[str, ...]) -> None:
    assert baton("status", *arguments).exit_code == 2
