"""`baton chat`: one-shot through click's runner, interactive on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from cli.api import sse_events
from protocols.chat import ChatDelta, ChatFailed, ChatStarted, Message
from tests.support.command import Baton
from tests.support.fake_backend import FINISHED, MODEL, NOT_FOUND, FakeBackend, events, stalls_after


def test_once(baton: Baton, api: str, backend: FakeBackend) -> None:
    result = baton("chat", MODEL, "--api", api, "--system", "Be brief", "--once", "Hi")
    assert result.exit_code == 0
    assert result.stdout == "Hé 🙂!\n"
    assert "100 prompt tokens read on peer-b (faster)" in result.stderr
    assert backend.requests[0].messages == (Message("system", "Be brief"), Message("user", "Hi"))


def test_piped_prompt_is_answered_once(baton: Baton, api: str, backend: FakeBackend) -> None:
    result = baton("chat", MODEL, "--api", api, input="two\nlines\n")
    assert result.stdout == "Hé 🙂!\n"
    assert backend.requests[0].messages == (Message("user", "two\nlines\n"),)


def test_line_breaks_that_only_unicode_knows(baton: Baton, api: str, backend: FakeBackend) -> None:
    text = "a\u2028b\x85c\x0bd"
    backend.script = events(ChatStarted(1), ChatDelta(text, 1), FINISHED)
    result = baton("chat", MODEL, "--api", api, "--once", "Hi")
    assert result.exit_code == 0
    assert result.stdout == text + "\n"


def test_events_are_found_however_the_body_is_cut() -> None:
    body = 'data: {"a":"é"}\n\n: keep-alive\n\ndata: [DONE]\n\n'.encode()
    for size in range(1, len(body) + 1):
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        assert list(sse_events(pieces)) == ['{"a":"é"}'.encode(), b"[DONE]"]


def test_unknown_model(baton: Baton, api: str, backend: FakeBackend) -> None:
    backend.script = events(NOT_FOUND)
    result = baton("chat", "nope", "--api", api, "--once", "Hi")
    assert result.exit_code == 1
    assert "There is no model `nope`." in result.stderr
    assert result.stdout == ""


def test_failure_in_the_middle_keeps_what_came(
    baton: Baton, api: str, backend: FakeBackend
) -> None:
    failed = ChatFailed(500, "server_error", "The engine died.")
    backend.script = events(ChatStarted(1), ChatDelta("Half", 1), failed)
    result = baton("chat", MODEL, "--api", api, "--once", "Hi")
    assert result.exit_code == 1
    assert result.stdout == "Half\n"
    assert "The engine died." in result.stderr


def test_nobody_answers(baton: Baton, dead_api: str) -> None:
    result = baton("chat", MODEL, "--api", dead_api, "--once", "Hi")
    assert result.exit_code == 1
    assert "start one with `baton up`" in result.stderr


class Terminal:
    """A `baton chat` on a pseudo-terminal."""

    def __init__(self, api: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "chat", MODEL, "--api", api],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` appears, and forget what came up to it."""
        deadline = time.monotonic() + 20
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], deadline - time.monotonic())
            assert ready, f"{text!r} did not come, but {self.seen!r}"
            self.seen += os.read(self.master, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(api: str) -> Iterator[Terminal]:
    terminal = Terminal(api)
    yield terminal
    terminal.close()


def test_conversation_on_a_terminal(terminal: Terminal, backend: FakeBackend) -> None:
    terminal.wait_for("> ")
    terminal.type("Hi\n")
    terminal.wait_for("Hé 🙂!")
    terminal.wait_for("first token after")
    terminal.wait_for("> ")
    backend.script = stalls_after(ChatStarted(1), ChatDelta("Once upon", 2))
    terminal.type("Tell\n")
    terminal.wait_for("Once upon")
    backend.left = type(backend.left)()
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("(cancelled)")
    terminal.wait_for("> ")
    deadline = time.monotonic() + 5
    while not backend.left.is_set():
        assert time.monotonic() < deadline, "Ctrl-C did not cancel the request in the node"
        time.sleep(0.02)
    backend.script = events(NOT_FOUND)
    terminal.type("More\n")
    terminal.wait_for("There is no model")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(10) == 0
    assert [message.content for message in backend.requests[2].messages] == [
        "Hi",
        "Hé 🙂!",
        "Tell",
        "Once upon",
        "More",
    ]
