"""What answers look like: OpenAI's completion and chunk objects, with `x_baton` beside them.

Fields that the reference always sends are sent as null where they are empty; the others, those of
deltas above all, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from node.http.backend import ModelInfo
from protocols.chat import ChatFinished, PrefillReport

__all__ = ["Answer", "model_list", "model_object"]

FinishReason: TypeAlias = Literal["stop", "length"]


class _PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptTokensDetails

    @classmethod
    def of(cls, finished: ChatFinished) -> Usage:
        """Return the usage of a finished answer; cached tokens are true prefix hits alone."""
        counts = finished.report.tokens
        return cls(
            prompt_tokens=finished.prompt_tokens,
            completion_tokens=finished.completion_tokens,
            total_tokens=finished.prompt_tokens + finished.completion_tokens,
            prompt_tokens_details=_PromptTokensDetails(counts.cached_local + counts.cached_remote),
        )


class _AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: _AssistantMessage
    logprobs: None = None
    finish_reason: FinishReason


class _Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[_Choice]
    usage: Usage
    x_baton: PrefillReport


class _Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class _ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: _Delta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class _Chunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[_ChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    x_baton: PrefillReport | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True):
    """What every object of one answer has in common, and the objects themselves as JSON."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    include_usage: bool = False
    """In a stream: every chunk has a usage field, null in all but the last."""

    def completion(self, text: str, finished: ChatFinished) -> bytes:
        """Return the whole answer as one object."""
        choice = _Choice(message=_AssistantMessage(content=text), finish_reason=finished.reason)
        return msgspec.json.encode(
            _Completion(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=(choice,),
                usage=Usage.of(finished),
                x_baton=finished.report,
            )
        )

    def first_chunk(self) -> bytes:
        """Return the chunk that says who speaks."""
        return self._chunk((_ChunkChoice(delta=_Delta(role="assistant", content="")),))

    def text_chunk(self, text: str) -> bytes:
        """Return a chunk with more of the answer."""
        return self._chunk((_ChunkChoice(delta=_Delta(content=text)),))

    def final_chunk(self, finished: ChatFinished) -> bytes:
        """Return the chunk with the finish reason, which also says where the prefill ran."""
        choice = _ChunkChoice(delta=_Delta(), finish_reason=finished.reason)
        return self._chunk((choice,), x_baton=finished.report)

    def usage_chunk(self, finished: ChatFinished) -> bytes:
        """Return the chunk that ends a stream whose client asked for the usage."""
        return self._chunk((), usage=Usage.of(finished))

    def _chunk(
        self,
        choices: tuple[_ChunkChoice, ...],
        *,
        usage: Usage | None = None,
        x_baton: PrefillReport | UnsetType = UNSET,
    ) -> bytes:
        return msgspec.json.encode(
            _Chunk(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage if self.include_usage else UNSET,
                x_baton=x_baton,
            )
        )


class _ModelNotes(msgspec.Struct, frozen=True):
    base_model: str
    ready: bool
    loaded: bool


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["baton"] = "baton"
    x_baton: _ModelNotes


class _ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[_Model, ...]


def model_object(info: ModelInfo) -> bytes:
    """Return a model as JSON."""
    return msgspec.json.encode(_model(info))


def model_list(infos: Sequence[ModelInfo]) -> bytes:
    """Return the list of models as JSON."""
    return msgspec.json.encode(_ModelList(data=tuple(_model(info) for info in infos)))


def _model(info: ModelInfo) -> _Model:
    notes = _ModelNotes(info.base_model, info.ready, info.loaded)
    return _Model(id=info.id, created=info.created, x_baton=notes)
