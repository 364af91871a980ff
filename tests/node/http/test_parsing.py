"""Request bodies: what is refused, under which name, and what becomes of what is accepted."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.http.errors import ApiError
from node.http.parsing import parse_chat, parse_measure
from node.http.schemas import ChatCompletionBody
from protocols.chat import Message, Sampling

VALID: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def body(**changes: object) -> bytes:
    return msgspec.json.encode(VALID | changes)


def user(**changes: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": "Hi"} | changes]


BAD_VALUES = [
    ({"model": 7}, "model"),
    ({"model": ""}, "model"),
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [*user(), {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": user(content=5)}, "messages[0].content"),
    ({"messages": user(content=None)}, "messages[0].content"),
    ({"messages": user(content=[])}, "messages[0].content"),
    ({"messages": user(content=[{"type": "text"}])}, "messages[0].content[0].text"),
    (
        {"messages": user(content=[{"type": "image_url", "image_url": {"url": "x"}}])},
        "messages[0].content[0].type",
    ),
    (
        {"messages": user(content=[{"type": "text", "text": "a", "cache_control": {}}])},
        "messages[0].content[0].cache_control",
    ),
    ({"messages": user(role="tool")}, "messages[0].role"),
    ({"messages": user(role="function")}, "messages[0].role"),
    ({"messages": user(name="bob")}, "messages[0].name"),
    ({"messages": user(tool_calls=[{"id": "1"}])}, "messages[0].tool_calls"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": False, "stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"max_completion_tokens": "9"}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"seed": "a"}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": [1]}, "stop[0]"),
    ({"x_baton": {"prefill": "moon"}}, "x_baton.prefill"),
    ({"x_baton": {"prefil": "auto"}}, "x_baton.prefil"),
    ({"user": 1}, "user"),
    ({"metadata": "a"}, "metadata"),
    ({"no_such_thing": None}, "no_such_thing"),
]

UNSUPPORTED = {
    "n": 2,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{}],
    "function_call": {"name": "f"},
    "logprobs": True,
    "top_logprobs": 3,
    "response_format": {"type": "json_object"},
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "logit_bias": {"5": 1},
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "prediction": {},
    "reasoning_effort": "high",
    "service_tier": "flex",
    "store": True,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "verbosity": "low",
    "web_search_options": {},
}


@pytest.mark.parametrize(("changes", "param"), BAD_VALUES, ids=lambda each: str(each)[:60])
def test_bad_value_is_refused_by_name(changes: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(body(**changes))
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_parameter_is_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError, match=f"`{name}` is not supported") as refused:
        parse_chat(body(**{name: UNSUPPORTED[name]}))
    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_missing_parameter_is_named(missing: str) -> None:
    given = {key: value for key, value in VALID.items() if key != missing}
    with pytest.raises(ApiError) as refused:
        parse_chat(msgspec.json.encode(given))
    assert (refused.value.param, refused.value.code) == (missing, "missing_required_parameter")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"model": "\xff"}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "m", "temperature": 1e999, "messages": []}',
        b'{"model": "m", "n": 1e999, "messages": []}',
        b'{"model": "m", "tools": ' + b"[" * 100_000,
        b'{"model": "m", "messages": ' + b"[" * 100_000,
        b'{"tools": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    ],
    ids=lambda raw: raw[:40].decode("latin-1"),
)
def test_malformed_body_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(raw)
    assert refused.value.status == 400


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner)
    ),
    max_leaves=8,
)
PARAMETERS = st.sampled_from([*ChatCompletionBody.__struct_fields__, *UNSUPPORTED, "user"])


@settings(max_examples=200, deadline=None)
@given(changes=st.dictionaries(PARAMETERS, JSON, max_size=4))
def test_any_json_is_parsed_or_refused_by_name(changes: dict[str, object]) -> None:
    raw = json.dumps(VALID | changes).encode()
    refused: ApiError | None = None
    try:
        assert parse_chat(raw).to_request("id", "auto").messages
    except ApiError as error:
        refused = error
    assert refused is None or (refused.status == 400 and refused.param is not None)


def test_true_is_not_one() -> None:
    with pytest.raises(ApiError, match="only 1 is accepted"):
        parse_chat(body(n=True))


def test_values_that_ask_for_nothing_are_accepted() -> None:
    parsed = parse_chat(
        body(
            n=1,
            presence_penalty=0,
            frequency_penalty=0.0,
            logit_bias={},
            tools=[],
            tool_choice="none",
            logprobs=False,
            top_logprobs=None,
            response_format={"type": "text"},
            functions=None,
            store=False,
            user="me",
            metadata={"a": "b"},
            temperature=None,
            stop=None,
            stream_options=None,
        )
    )
    assert parsed.sampling() == Sampling()


def test_assistant_message_as_sdks_send_it_back_is_accepted() -> None:
    extras = {"refusal": None, "annotations": [], "audio": None, "tool_calls": None}
    answer = {"role": "assistant", "content": "Hello"} | extras
    request = parse_chat(body(messages=[*user(), answer, *user(content="Bye")])).to_request(
        "id", "auto"
    )
    assert request.messages == (
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("user", "Bye"),
    )


def test_everything_that_is_honoured_reaches_the_request() -> None:
    parsed = parse_chat(
        body(
            messages=[
                {"role": "developer", "content": "Be brief"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
            ],
            max_completion_tokens=9,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            seed=-3,
            stop="END",
            x_baton={"prefill": "remote"},
        )
    )
    request = parsed.to_request("id-1", "local")
    assert request.id == "id-1"
    assert request.messages == (Message("developer", "Be brief"), Message("user", "a\nb"))
    assert request.sampling == Sampling(9, 0.5, 0.9, 40, -3, ("END",))
    assert request.prefill == "remote"


def test_policy_that_is_not_asked_for_is_the_nodes() -> None:
    assert parse_chat(body()).to_request("id", "local").prefill == "local"
    assert parse_chat(body(x_baton={})).to_request("id", "local").prefill == "local"


def test_empty_nucleus_is_greedy() -> None:
    sampling = parse_chat(body(top_p=0, temperature=1.5)).sampling()
    assert (sampling.temperature, sampling.top_p) == (0.0, 1.0)


def test_measure_takes_nothing_but_model_and_messages() -> None:
    request = parse_measure(body()).to_request("m-1")
    assert request.messages == (Message("user", "Hi"),)
    with pytest.raises(ApiError) as refused:
        parse_measure(body(stream=True))
    assert refused.value.param == "stream"
