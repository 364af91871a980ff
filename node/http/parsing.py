"""Decoding request bodies, with errors that name the parameter.

A parameter is either honoured or refused by name. One that is not supported is accepted only with
a value that asks for nothing, such as `n: 1`; one that only labels the request, such as `user`, is
accepted and ignored.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias, TypeVar

import msgspec

from node.http.errors import ApiError
from node.http.schemas import (
    ChatCompletionBody,
    ChatMessage,
    InstanceBody,
    LinkBody,
    MeasureBody,
)

__all__ = ["parse_chat", "parse_instance", "parse_link", "parse_measure"]

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
BodyT = TypeVar("BodyT", ChatCompletionBody, InstanceBody, LinkBody, MeasureBody)


class _MessageKeys(msgspec.Struct, frozen=True):
    messages: list[dict[str, msgspec.Raw]]


_NEUTRAL: Final[dict[str, tuple[Json, ...]]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters that are not supported, with the values, besides null, that ask for nothing."""

_LABELS: Final[dict[str, type]] = {
    "metadata": dict,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "safety_identifier": str,
    "user": str,
}
"""Parameters that label a request and change nothing about its answer, with their types."""

_HONOURED: Final = frozenset(ChatCompletionBody.__struct_fields__)
_PATH: Final = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_FIELD: Final = re.compile(r"(?:missing required|contains unknown) field `(?P<field>[^`]+)`")


def parse_chat(body: bytes) -> ChatCompletionBody:
    """Decode and check a chat completion's body.

    Raises:
        ApiError: it is malformed, or asks for something that is not supported; names the parameter.
    """
    for name, raw in _keys(body).items():
        if name not in _HONOURED:
            _check_parameter(name, raw)
    parsed = _decode(body, ChatCompletionBody)
    _refuse_message_extras(body)
    if parsed.stream_options is not None and not parsed.stream:
        raise ApiError("`stream_options` needs `stream: true`.", param="stream_options")
    if parsed.max_tokens is not None and parsed.max_completion_tokens is not None:
        raise ApiError(
            "`max_tokens` and `max_completion_tokens` mean the same; give one.", param="max_tokens"
        )
    return parsed


def parse_measure(body: bytes) -> MeasureBody:
    """Decode and check a measurement's body.

    Raises:
        ApiError: it is malformed; names the parameter.
    """
    parsed = _decode_strictly(body, MeasureBody)
    _refuse_message_extras(body)
    return parsed


def parse_instance(body: bytes) -> InstanceBody:
    """Decode and check what instance is wanted.

    Raises:
        ApiError: it is malformed; names the parameter.
    """
    return _decode_strictly(body, InstanceBody)


def parse_link(body: bytes) -> LinkBody:
    """Decode and check which instances are to be linked.

    Raises:
        ApiError: it is malformed; names the parameter.
    """
    return _decode_strictly(body, LinkBody)


def _decode_strictly(body: bytes, type_: type[BodyT]) -> BodyT:
    for name in _keys(body):
        if name not in type_.__struct_fields__:
            raise _unknown(name)
    return _decode(body, type_)


def _keys(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise ApiError(f"The body must be a JSON object: {error}.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(error) from error


def _decode(body: bytes, type_: type[BodyT]) -> BodyT:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(error) from error


def _value(raw: msgspec.Raw, name: str) -> Json:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(f"`{name}` is not readable JSON: {error}.", param=name) from error


def _check_parameter(name: str, raw: msgspec.Raw) -> None:
    """Raise unless a parameter that is not honoured asks for nothing."""
    value = _value(raw, name)
    if name in _LABELS:
        if value is not None and not isinstance(value, _LABELS[name]):
            kind = "an object" if _LABELS[name] is dict else "a string"
            raise ApiError(f"`{name}` must be {kind}.", param=name, code="invalid_type")
        return
    if name not in _NEUTRAL:
        raise _unknown(name)
    if value is None or any(_same(value, neutral) for neutral in _NEUTRAL[name]):
        return
    accepted = " or ".join(msgspec.json.encode(each).decode() for each in _NEUTRAL[name])
    but = f"; only {accepted} is accepted" if accepted else ""
    raise ApiError(f"`{name}` is not supported{but}.", param=name, code="unsupported_parameter")


def _same(value: Json, neutral: Json) -> bool:
    """Compare as JSON does, where `true` is not 1."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def _refuse_message_extras(body: bytes) -> None:
    """Raise if a message has a key that would be ignored and is not empty.

    What SDKs put into the assistant messages that they send back (`refusal: null`,
    `annotations: []`) passes.
    """
    for index, message in enumerate(msgspec.json.decode(body, type=_MessageKeys).messages):
        for key, raw in message.items():
            name = f"messages[{index}].{key}"
            if key not in ChatMessage.__struct_fields__ and _value(raw, name) not in (None, []):
                raise ApiError(
                    f"`{name}` is not supported.", param=name, code="unsupported_parameter"
                )


def _unknown(name: str) -> ApiError:
    return ApiError(f"Unknown parameter: `{name}`.", param=name, code="unknown_parameter")


def _malformed(error: Exception) -> ApiError:
    return ApiError(f"The body is not valid JSON: {error}.", code="invalid_json")


def _invalid(detail: str) -> ApiError:
    """Return the error for a value that msgspec refused, whose message ends with its path."""
    match = _PATH.search(detail)
    path = match["path"] if match else ""
    detail = detail[: match.start()] if match else detail
    field = _FIELD.search(detail)
    if field is not None:
        param = f"{path}.{field['field']}".lstrip(".")
        if "missing" in detail:
            return ApiError(
                f"Missing required parameter: `{param}`.",
                param=param,
                code="missing_required_parameter",
            )
        return _unknown(param)
    return ApiError(f"Invalid `{path}`: {detail}.", param=path or None, code="invalid_value")
