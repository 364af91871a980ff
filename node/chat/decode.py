"""Answering a request with a decode engine of this node, its prompt prefilled where it is best."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio
from loguru import logger

from node.chat.channel import Emit
from node.chat.failures import failure_of, unavailable
from node.chat.report import ReportBuilder
from node.errors import BatonError, EngineDied, EngineRequestFailed, InstanceNotReady
from node.instances.connection import RequestHandle
from node.instances.instance import Instance
from node.prefill.planner import Candidate, Plan, Planner
from node.prefill.transfer import Transfer
from protocols.chat import (
    ChatDelta,
    ChatFailed,
    ChatFinished,
    ChatProgress,
    ChatRequest,
    ChatStarted,
)
from protocols.engine import (
    Failed,
    Finished,
    Generate,
    GenerateStarted,
    Progress,
    Token,
)
from protocols.kv_prefill.messages import Request, hash_tokens, pack_tokens

__all__ = ["Decoder"]

MAX_ATTEMPTS: Final = 3
"""Prefill engines that are tried before the rest is computed here."""
MAX_RESUMES: Final = 2
"""Times that one of them is asked again because the connection to it was lost."""


class Decoder:
    """Answers requests with this node's decode engines.

    Args:
        find: returns a ready decode instance of a model, or `None`.
        planner: decides on prefill elsewhere, and does it.
    """

    def __init__(self, find: Callable[[str], Instance | None], planner: Planner) -> None:
        self._find = find
        self._planner = planner

    async def answer(self, request: ChatRequest, emit: Emit) -> None:
        """Emit the events of an answer, the last of which ends it. Raises nothing of its own."""
        report = ReportBuilder(trio.current_time())
        try:
            instance = self._find(request.model)
            if instance is None:
                await emit(unavailable(f"no engine that decodes {request.model} is ready here"))
                return
            await self._answer(instance, request, report, emit)
        except (InstanceNotReady, EngineDied, EngineRequestFailed) as error:
            logger.warning("request {} failed: {}", request.id, error)
            await emit(failure_of(error))

    async def _answer(
        self, instance: Instance, request: ChatRequest, report: ReportBuilder, emit: Emit
    ) -> None:
        tokens = await instance.tokenize(request.id, request.messages)
        refusal = _check_length(instance, len(tokens))
        if refusal is not None:
            await emit(refusal)
            return
        await emit(ChatStarted(prompt_tokens=len(tokens)))
        packed = pack_tokens(tokens)
        async with instance.request(request.id) as handle:
            plan = self._planner.plan(instance, len(tokens), request.prefill)
            report.planned(plan)
            await self._prefill(plan, instance, handle, packed, report, emit)
            await handle.send(Generate(request=handle.id, tokens=packed, sampling=request.sampling))
            await self._pass_on(instance, handle, report, emit)

    async def _prefill(
        self,
        plan: Plan,
        instance: Instance,
        handle: RequestHandle,
        tokens: bytes,
        report: ReportBuilder,
        emit: Emit,
    ) -> None:
        """Have the prompt's cache injected, all but its last token's, as far as that succeeds."""
        capabilities = instance.capabilities
        if capabilities is None:
            raise EngineDied(f"{instance.id} is not loaded")
        layout = capabilities.layout
        end = len(tokens) // 4 - 1
        request = Request(
            id=handle.id,
            model=instance.spec.model,
            fingerprint=layout.fingerprint,
            tokens=tokens[: 4 * end],
            tokens_hash=hash_tokens(tokens[: 4 * end]),
            start=0,
            end=end,
            dtypes=("bfloat16", "float16", "float32"),
            codecs=("raw",),
            deadline_ms=0,
        )

        async def progress(done: int) -> None:
            await emit(ChatProgress(done=done, total=end + 1))

        for candidate in plan.candidates[:MAX_ATTEMPTS]:
            asked = msgspec.structs.replace(
                request,
                model=candidate.model,
                codecs=candidate.codecs,
                deadline_ms=candidate.deadline_ms,
            )
            start = await self._ask(candidate, asked, instance, handle, report, progress)
            if start == end:
                return
            request = msgspec.structs.replace(request, start=start)

    async def _ask(
        self,
        candidate: Candidate,
        request: Request,
        instance: Instance,
        handle: RequestHandle,
        report: ReportBuilder,
        progress: Callable[[int], Awaitable[None]],
    ) -> int:
        """Have a candidate prefill, over another link where one is lost; return how far it came.

        The rest alone is asked for again: what had arrived is kept, and the candidate has the
        prompt's beginning in its prefix cache.
        """
        for _ in range(1 + MAX_RESUMES):
            transfer = await self._attempt(candidate, request, instance, handle, progress)
            report.attempted(candidate, transfer, request.start)
            if transfer.complete:
                return request.end
            logger.warning(
                "prefill of {} on {} ended at token {} of {}: {}",
                handle.id,
                candidate.peer_id,
                transfer.usable_end,
                request.end,
                transfer.reason,
            )
            request = msgspec.structs.replace(request, start=transfer.usable_end)
            if not transfer.link_lost or request.start == request.end:
                break
        return request.start

    async def _attempt(
        self,
        candidate: Candidate,
        request: Request,
        instance: Instance,
        handle: RequestHandle,
        progress: Callable[[int], Awaitable[None]],
    ) -> Transfer:
        try:
            return await self._planner.transfer(candidate, request, instance, handle, progress)
        except EngineDied:
            raise
        except BatonError as error:
            return Transfer(reason=error.problem, usable_end=request.start)

    async def _pass_on(
        self, instance: Instance, handle: RequestHandle, report: ReportBuilder, emit: Emit
    ) -> None:
        while True:
            message = (await handle.receive()).message
            match message:
                case GenerateStarted():
                    report.generating(message)
                case Progress():
                    read = report.read_before + message.done
                    await emit(ChatProgress(done=read, total=read + message.total - message.done))
                case Token():
                    report.token(trio.current_time())
                    await emit(ChatDelta(text=message.text, tokens=1))
                case Finished():
                    instance.measured_prefill(report.computed_here, message.prefill_s)
                    if message.text:
                        await emit(ChatDelta(text=message.text, tokens=0))
                    await emit(
                        ChatFinished(
                            reason=message.reason,
                            prompt_tokens=message.prompt_tokens,
                            completion_tokens=message.completion_tokens,
                            report=report.build(message),
                        )
                    )
                    return
                case Failed():
                    raise EngineRequestFailed(message.code, message.reason)
                case _:
                    continue


def _check_length(instance: Instance, tokens: int) -> ChatFailed | None:
    capabilities = instance.capabilities
    limit = capabilities.max_context if capabilities is not None else 0
    if tokens < limit:
        return None
    return ChatFailed(
        status=400,
        kind="invalid_request_error",
        message=f"The prompt has {tokens} tokens, and the context of {instance.spec.model} is "
        f"{limit} tokens, prompt and answer together. Shorten the messages.",
        code="context_length_exceeded",
        param="messages",
    )
