"""The display of a running node, on a terminal and without one."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from cli.logs import node_display
from node.instances.instance import Instance, InstanceSpec


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    yield
    logger.remove()
    logger.add(sys.stderr)


@pytest.fixture
def instance() -> Instance:
    async def locate() -> Path:
        return Path()

    spec = InstanceSpec(model="org/[tiny]", engine="mlx", roles=("decode",))
    return Instance(spec, "org/tiny", locate, lambda: None, lambda stage, fraction: None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_the_log_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    with node_display("info") as on_loading:
        logger.info("found a peer")
        logger.debug("too fine")
    assert on_loading is None
    shown = capsys.readouterr()
    assert "| INFO     | " in shown.err
    assert "found a peer" in shown.err
    assert "too fine" not in shown.err
    assert shown.out == ""


def test_on_a_terminal_words_and_a_bar(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with node_display("info") as on_loading:
        assert on_loading is not None
        on_loading(instance, "weights", 0.5)
        logger.warning("no [peer] yet")
        try:
            raise ValueError("odd")
        except ValueError:
            logger.exception("it failed")
        on_loading(instance, "ready", 1.0)
        drawn = len(terminal.getvalue())
        on_loading(instance, "ready", 1.0)
        time.sleep(0.3)
        assert len(terminal.getvalue()) == drawn
        on_loading(instance, "again", 0.1)
    shown = terminal.getvalue()
    assert "org/[tiny] on mlx: again" in shown
    assert "no [peer] yet" in shown
    assert "WARNING" not in shown
    assert "ValueError: odd" in shown
    assert "org/[tiny] on mlx: weights" in shown


def test_what_others_say_cannot_drive_the_terminal(capsys):
    with node_display("info"):
        logger.info("{} has joined", "\x1b[2Jevil\x07")
    logged = capsys.readouterr().err
    assert "evil" in logged
    assert not set(logged) & {"\x1b", "\x07"}
