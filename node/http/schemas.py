"""What requests may hold, and their conversion to the messages that the node works with.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from node.http.backend import CreateInstance, MeasureRequest
from protocols.chat import ChatRequest, Message, PrefillPolicy, Role, Sampling
from protocols.engine import EngineName
from protocols.placement import RoleWish

__all__ = ["ChatCompletionBody", "ChatMessage", "InstanceBody", "LinkBody", "MeasureBody"]


_TokenLimit: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_StopString: TypeAlias = Annotated[str, Meta(min_length=1)]
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]
_StopStrings: TypeAlias = Annotated[list[_StopString], Meta(max_length=4)]


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a message's content; text is the only kind."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, frozen=True):
    """A message. Other keys than these two are for `node.http.parsing` to refuse."""

    role: Role
    content: str | Annotated[list[TextPart], Meta(min_length=1)]

    def to_message(self) -> Message:
        """Return the message with its parts joined by line breaks."""
        if isinstance(self.content, str):
            return Message(self.role, self.content)
        return Message(self.role, "\n".join(part.text for part in self.content))


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that only a stream has."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class BatonOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Baton's own options."""

    prefill: PrefillPolicy | None = None


class ChatCompletionBody(msgspec.Struct, frozen=True):
    """The body of `POST /v1/chat/completions`: the parameters that are honoured."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _TokenLimit | None = None
    max_completion_tokens: _TokenLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _StopString | _StopStrings | None = None
    x_baton: BatonOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk that holds the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> Sampling:
        """Return how tokens are to be chosen; what is absent has OpenAI's default."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        # A nucleus of mass 0 holds the likeliest token alone, which is what greedy takes.
        greedy = self.top_p == 0
        temperature = 1.0 if self.temperature is None else self.temperature
        return Sampling(
            max_tokens=self.max_completion_tokens or self.max_tokens or 0,
            temperature=0.0 if greedy else temperature,
            top_p=1.0 if greedy or self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            seed=self.seed,
            stop=stop,
        )

    def to_request(self, request_id: str, default_prefill: PrefillPolicy) -> ChatRequest:
        """Return the request that this body makes."""
        asked = self.x_baton.prefill if self.x_baton is not None else None
        return ChatRequest(
            id=request_id,
            model=self.model,
            messages=tuple(message.to_message() for message in self.messages),
            sampling=self.sampling(),
            prefill=asked or default_prefill,
        )


class MeasureBody(msgspec.Struct, frozen=True):
    """The body of `POST /v1/prefill/measure`."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]

    def to_request(self, request_id: str) -> MeasureRequest:
        """Return the request that this body makes."""
        messages = tuple(message.to_message() for message in self.messages)
        return MeasureRequest(request_id, self.model, messages)


class InstanceBody(msgspec.Struct, frozen=True):
    """The body of `POST /v1/instances`; what is left out, or null, is for the master to choose."""

    model: _Name
    node: _Name | None = None
    """Peer id."""
    engine: EngineName | None = None
    role: RoleWish | None = None

    def to_request(self) -> CreateInstance:
        """Return the request that this body makes."""
        return CreateInstance(self.model, self.node or "", self.engine, self.role)


class LinkBody(msgspec.Struct, frozen=True):
    """The body of `POST` and `DELETE /v1/links`: two ids of instances."""

    prefill: _Name
    decode: _Name
