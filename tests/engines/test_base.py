import pytest

from engines.base import EngineError, conversation
from protocols.chat import Message


def test_developers_are_systems_to_chat_templates():
    messages = [Message("developer", "Be brief."), Message("user", "Hi"), Message("assistant", "?")]
    assert conversation(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "?"},
    ]
    assert conversation([Message("system", "Be brief."), *messages[1:]]) == conversation(messages)


def test_no_messages_are_refused():
    with pytest.raises(EngineError) as refused:
        conversation([])
    assert refused.value.code == "bad_request"
