"""Two machines: network namespaces joined by a bridge, in each of them `baton up` and a role."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.api import MODEL
from tests.support.netns import Network, network
from tests.support.prompts import question

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

BATON = [sys.executable, "-P", "-m", "cli.main"]
ASK = "What is the name of the lighthouse?"


class Machine:
    """A namespace, a home directory of its own, and the node that runs there."""

    def __init__(self, prefix: list[str], home: Path, models: Path) -> None:
        self._prefix = prefix
        self._home = home
        # Nothing but what a fresh user of the machine would have.
        self._environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "BATON_MODELS": str(models),
        }

    @contextmanager
    def up(self, role: str) -> Iterator[None]:
        """Run `baton up --role ROLE` while open."""
        with (self._home / "log").open("wb") as log:
            node = subprocess.Popen(
                [*self._prefix, *BATON, "up", "--role", role],
                env=self._environment,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                yield
                assert node.poll() is None, self.log()
                node.send_signal(signal.SIGINT)
                assert node.wait(20) == 0, self.log()
            finally:
                if node.poll() is None:
                    node.kill()
                    node.wait()

    def log(self) -> str:
        return (self._home / "log").read_text(errors="replace")

    def logged_at(self, text: str) -> datetime:
        """Return when the node first logged a line with that text."""
        line = next(line for line in self.log().splitlines() if text in line)
        return datetime.fromisoformat(line.split(" | ")[0].strip())

    def baton(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another command there."""
        return subprocess.run(
            [*self._prefix, *BATON, *words],
            env=self._environment,
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def ask(self, prompt: str) -> subprocess.CompletedProcess[str]:
        """Have the machine's user ask something."""
        options = ("--temperature", "0", "--max-tokens", "24")
        done = self.baton("chat", MODEL, *options, "--once", prompt)
        assert done.returncode == 0, done.stderr
        return done

    def cluster(self) -> dict[str, Any]:
        """Return what `baton status --json` prints; nothing while the node is not up."""
        done = self.baton("status", "--json")
        return msgspec.json.decode(done.stdout) if done.returncode == 0 else {}

    def wait_for_nodes(self, count: int) -> None:
        """Wait until so many nodes are alive here."""
        self.wait_for(
            lambda cluster: (
                [each["state"] for each in cluster.get("nodes", [])] == ["alive"] * count
            )
        )

    def wait_until_ready(self, instances: int) -> None:
        """Wait until so many instances of the cluster are ready, as this node knows it."""
        self.wait_for(
            lambda cluster: (
                [
                    instance["state"]
                    for node in cluster.get("nodes", [])
                    for instance in node["instances"]
                ]
                == ["ready"] * instances
            )
        )

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until a condition of the cluster holds."""
        deadline = time.monotonic() + 120
        while not condition(cluster := self.cluster()):
            assert time.monotonic() < deadline, f"{cluster}\n{self.log()}"


def machines_on(cables: Network, directory: Path, model: Path) -> tuple[Machine, Machine]:
    """Return two machines with homes in `directory`, and the model's directory in common."""
    homes = [directory / str(index) for index in range(2)]
    for home in homes:
        home.mkdir()
    first, second = (
        Machine(cables.prefix(index), home, model.parent) for index, home in enumerate(homes)
    )
    return first, second


def test_two_machines_find_each_other_and_serve(tmp_path: Path, smollm2_path: Path):
    with network(2) as cables, ExitStack() as stack:
        prefill, decode = machines = machines_on(cables, tmp_path, smollm2_path)
        stack.enter_context(prefill.up("prefill"))
        prefill.wait_for_nodes(1)
        stack.enter_context(decode.up("decode"))
        for machine in machines:
            machine.wait_until_ready(2)
        up = max(machine.logged_at("answers at") for machine in machines)
        for machine in machines:
            assert (machine.logged_at("has joined") - up).total_seconds() < 5

        by_role = {each["roles"][0]: each["peer_id"] for each in decode.cluster()["nodes"]}
        assert by_role.keys() == {"prefill", "decode"}
        assert len({machine.cluster()["master"]["peer_id"] for machine in machines}) == 1
        for machine in machines:
            done = machine.ask(question(3, ASK))
            assert "Sker Point" in done.stdout
            assert f"read on {by_role['prefill'][-8:]}" in done.stderr
        shown = decode.baton("status")
        assert shown.returncode == 0
        assert "10.77.0.1" in shown.stdout


def test_answers_come_while_the_prefill_machines_cable_is_pulled_and_after(
    tmp_path: Path, smollm2_path: Path
):
    with network(2) as cables, ExitStack() as stack:
        prefill, decode = machines_on(cables, tmp_path, smollm2_path)
        stack.enter_context(prefill.up("prefill"))
        stack.enter_context(decode.up("decode"))
        decode.wait_until_ready(2)
        cables.set_cable(0, plugged=False)
        done = decode.ask(question(3, ASK))
        assert "Sker Point" in done.stdout
        assert "where it was decoded" in done.stderr
        cables.set_cable(0, plugged=True)
        decode.wait_for_nodes(2)
        done = decode.ask(question(3, f"{ASK} Tell me."))
        assert "where it was decoded" not in done.stderr
