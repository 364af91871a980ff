"""The engine process's inbox: what waits there is bounded, and never for ever."""

from __future__ import annotations

import threading

import pytest

from engines import process
from engines.process import _Inbox
from protocols.engine import Inject, NodeMessage, Shutdown
from protocols.framing import Frame
from tests.support.caches import HYBRID, chunk_for

CHUNK, PAYLOAD = chunk_for(HYBRID, 0, 0, 8)
FRAME: Frame[NodeMessage] = Frame(Inject(request="r", chunk=CHUNK), memoryview(PAYLOAD))
OTHER: Frame[NodeMessage] = Frame(Shutdown(), memoryview(b""))


def put_in_thread(inbox: _Inbox, frame: Frame[NodeMessage]) -> threading.Thread:
    thread = threading.Thread(target=inbox.put, args=(frame,), daemon=True)
    thread.start()
    return thread


def test_frames_come_out_in_order_and_all_at_once():
    inbox = _Inbox()
    assert inbox.take(block=False) == []
    inbox.put(FRAME)
    inbox.put(OTHER)
    assert inbox.take(block=True) == [FRAME, OTHER]


def test_a_blocking_take_waits_for_a_frame():
    inbox = _Inbox()
    taken: list[Frame[NodeMessage]] = []
    thread = threading.Thread(target=lambda: taken.extend(inbox.take(block=True)), daemon=True)
    thread.start()
    inbox.put(OTHER)
    thread.join(5)
    assert taken == [OTHER]


def test_payloads_wait_for_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "_MAX_INBOX", 2 * len(PAYLOAD))
    monkeypatch.setattr(process, "_INBOX_PATIENCE_S", 60.0)
    inbox = _Inbox()
    inbox.put(FRAME)
    inbox.put(FRAME)
    waiting = put_in_thread(inbox, FRAME)
    waiting.join(0.2)
    assert waiting.is_alive()
    assert inbox.take(block=False) == [FRAME, FRAME]
    waiting.join(5)
    assert inbox.take(block=False) == [FRAME]


def test_a_step_that_waits_itself_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "_MAX_INBOX", 1)
    monkeypatch.setattr(process, "_INBOX_PATIENCE_S", 0.05)
    inbox = _Inbox()
    inbox.put(FRAME)
    waiting = put_in_thread(inbox, OTHER)
    waiting.join(5)
    assert not waiting.is_alive()
    assert inbox.take(block=False) == [FRAME, OTHER]
