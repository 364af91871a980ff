"""`baton chat`: one-shot through click's runner, interactive on a real terminal."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from cli.api import sse_events
from protocols.chat import ChatDelta, ChatFailed, ChatProgress, ChatStarted, Message
from tests.support.command import Baton
from tests.support.fake_backend import FINISHED, MODEL, NOT_FOUND, FakeBackend, events, stalls_after
from tests.support.terminal import Terminal, baton_terminal


def test_once(baton: Baton, api: str, backend: FakeBackend) -> None:
    result = baton("chat", MODEL, "--api", api, "--system", "Be brief", "--once", "Hi")
    assert result.exit_code == 0
    assert result.stdout == "Hé 🙂!\n"
    assert "100 prompt tokens read on peer-b (faster)" in result.stderr
    assert backend.requests[0].messages == (Message("system", "Be brief"), Message("user", "Hi"))


def test_sampling_options(baton: Baton, api: str, backend: FakeBackend) -> None:
    options = ("--temperature", "0", "--max-tokens", "7")
    assert baton("chat", MODEL, "--api", api, *options, "--once", "Hi").exit_code == 0
    assert baton("chat", MODEL, "--api", api, "--once", "Hi").exit_code == 0
    told, untold = (request.sampling for request in backend.requests)
    assert (told.temperature, told.max_tokens) == (0, 7)
    assert (untold.temperature, untold.max_tokens) == (1, 0)


@pytest.mark.parametrize("option", [("--temperature", "3"), ("--max-tokens", "0")])
def test_sampling_options_out_of_range(baton: Baton, option: tuple[str, str]) -> None:
    result = baton("chat", MODEL, *option, "--once", "Hi")
    assert result.exit_code == 2
    assert "range" in result.stderr


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
        comments: list[str] = []
        assert list(sse_events(pieces, comments.append)) == ['{"a":"é"}'.encode(), b"[DONE]"]
        assert comments == ["keep-alive"]


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


def test_connection_that_breaks_in_the_middle(baton: Baton) -> None:
    event = b'data: {"choices":[{"delta":{"content":"Half"}}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    def answer_half() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(head + b"%x\r\n%s\r\n" % (len(event), event))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_half)
        thread.start()
        api = f"127.0.0.1:{listener.getsockname()[1]}"
        result = baton("chat", MODEL, "--api", api, "--once", "Hi")
        thread.join(10)
    assert result.exit_code == 1
    assert result.stdout == "Half\n"
    assert "the answer broke off" in result.stderr


def test_nobody_answers(baton: Baton, dead_api: str) -> None:
    result = baton("chat", MODEL, "--api", dead_api, "--once", "Hi")
    assert result.exit_code == 1
    assert "start one with `baton up`" in result.stderr


@pytest.fixture
def terminal(api: str) -> Iterator[Terminal]:
    with baton_terminal("chat", MODEL, "--api", api) as terminal:
        yield terminal


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


def test_reading_of_a_long_prompt_is_shown(api: str, backend: FakeBackend) -> None:
    backend.script = stalls_after(ChatStarted(1000), ChatProgress(370, 1000))
    with baton_terminal("chat", MODEL, "--api", api, "--once", "Hi", kind="xterm") as terminal:
        terminal.wait_for("reading the prompt 370/1000 tokens")
