"""vLLM as an engine: prefills for others, and answers by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from loguru import logger

from engines.base import ChunkSink, EngineError, LoadProgress, Outbox, conversation
from engines.fingerprint import fingerprint
from engines.vllm import environment
from engines.vllm.handoff import handoffs
from engines.vllm.jobs import GenerateJob, PrefillJob
from protocols.cache import CacheLayout
from protocols.chat import Message, Sampling
from protocols.engine import (
    Capabilities,
    Failed,
    Generate,
    Inject,
    Load,
    Prefill,
    Receive,
)
from protocols.kv_prefill.messages import unpack_tokens

if TYPE_CHECKING:
    from vllm import LLMEngine, SamplingParams, TokensPrompt

__all__ = ["VllmEngine", "create"]


def create(outbox: Outbox, sink: ChunkSink) -> VllmEngine:
    """Make the engine (see `engines.base.EngineFactory`)."""
    return VllmEngine(outbox, sink)


class VllmEngine:
    """One model in vLLM (see `engines.base.Engine`).

    vLLM batches all requests by itself. Each `step` here is one of its steps: a chunk of the
    prompts being read, and one token of every answer being written.
    """

    def __init__(self, outbox: Outbox, sink: ChunkSink) -> None:
        self._outbox = outbox
        self._sink = sink
        self._key, self._handoff = handoffs.open()
        self._loaded: LLMEngine | None = None
        self._jobs: dict[str, PrefillJob | GenerateJob] = {}
        self._vllm_ids: dict[str, str] = {}
        """vLLM's own name of each request; it adds a suffix to ours."""
        self._max_context = self._vocab_size = 0
        self._obstacle = ""
        """Why this model's caches cannot be handed out; empty where they can."""

    def load(self, request: Load, progress: LoadProgress) -> Capabilities:
        """See `Engine.load`.

        A model whose caches cannot be handed out is loaded all the same: vLLM answers by itself.
        """
        environment.prepare()
        from engines.vllm import speed, start

        progress("checking", 0.0)
        config = start.read_config(Path(request.path))
        progress("loading", 0.05)
        llm = self._loaded = start.start(request, self._key)
        self._max_context = llm.model_config.max_model_len
        self._vocab_size = llm.model_config.get_vocab_size()
        progress("measuring", 0.9)
        try:
            layout = start.open_caches(self._handoff, config)
            rates = speed.measure(llm, self._handoff, self._max_context, self._vocab_size)
        except EngineError as error:
            if error.code != "unsupported":
                raise
            self._obstacle = error.reason
            self._handoff.open_layers({})
            layout = CacheLayout("bfloat16", (), fingerprint(config))
            rates = speed.measure(llm, self._handoff, self._max_context, self._vocab_size)
        progress("ready", 1.0)
        return Capabilities(
            engine="vllm",
            device=_device_name(),
            layout=layout,
            max_context=self._max_context,
            vocab_size=self._vocab_size,
            can_prefill=not self._obstacle,
            can_inject=False,
            can_generate=True,
            prefill_tokens_per_s=rates.prefill,
            decode_tokens_per_s=rates.decode,
            obstacle=self._obstacle,
        )

    def tokenize(self, messages: Sequence[Message]) -> list[int]:
        """See `Engine.tokenize`.

        Raises:
            EngineError: the model has no chat template, or its template refuses the messages.
        """
        from jinja2 import TemplateError

        tokenizer: Any = self._llm.get_tokenizer()
        if not getattr(tokenizer, "chat_template", None):
            raise EngineError("unsupported", "this model's tokenizer has no chat template")
        spoken = conversation(messages)
        try:
            return list(
                tokenizer.apply_chat_template(
                    spoken, add_generation_prompt=True, tokenize=True, return_dict=False
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise EngineError("bad_request", f"the chat template refuses: {error}") from error

    def prefill(self, request: Prefill) -> None:
        """See `Engine.prefill`."""
        from vllm import SamplingParams

        if self._obstacle:
            raise EngineError(
                "unsupported", f"this model is not prefilled for others: {self._obstacle}"
            )
        tokens = self._unpack(request.tokens)
        if not 0 <= request.start < request.end <= len(tokens):
            raise EngineError(
                "bad_request",
                f"tokens {request.start} to {request.end} of a prompt of {len(tokens)}",
            )
        # vLLM always samples: one token more than was asked for, of which nothing is kept.
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        # Blocks under a salt of its own serve no other request, nor this one those of others.
        salt = None if request.reuse else request.request
        self._submit(PrefillJob(request, self._sink), tokens[: request.end], params, salt)

    def receive(self, request: Receive) -> None:
        """Refuse: this engine injects no caches yet."""
        _refuse_to_inject()

    def inject(self, request: Inject, payload: memoryview) -> None:
        """Refuse: this engine injects no caches yet."""
        _refuse_to_inject()

    def generate(self, request: Generate) -> None:
        """See `Engine.generate`."""
        tokens = self._unpack(request.tokens)
        room = self._max_context - len(tokens)
        params = _sampling_params(request.sampling, room)
        self._submit(GenerateJob(request, len(tokens), self._outbox), tokens, params)

    def cancel(self, request: str) -> None:
        """See `Engine.cancel`."""
        if self._jobs.pop(request, None) is None:
            return
        vllm_id = self._vllm_ids.pop(request)
        self._handoff.remove(vllm_id)
        self._llm.abort_request([vllm_id], internal=True)
        self._sink.discard(request)

    def step(self) -> bool:
        """See `Engine.step`.

        What vLLM raises here is no single request's fault: it goes on to end the process.
        """
        if not self._jobs:
            return False
        for output in self._llm.step():
            job = self._jobs.get(output.request_id)
            if job is not None and job.failure is None:
                self._advance(job, output)
        for job in [job for job in self._jobs.values() if job.failure is not None]:
            self._fail(job)
        return bool(self._jobs)

    def unload(self) -> None:
        """See `Engine.unload`."""
        handoffs.close(self._key)
        if self._loaded is None:
            return
        from engines.vllm import start

        start.stop(self._loaded)
        self._loaded = None

    @property
    def _llm(self) -> LLMEngine:
        if self._loaded is None:
            raise EngineError("bad_request", "no model has been loaded")
        return self._loaded

    def _unpack(self, packed: bytes) -> list[int]:
        try:
            tokens = unpack_tokens(packed)
        except ValueError as error:
            raise EngineError("bad_request", str(error)) from error
        if not tokens:
            raise EngineError("bad_request", "the prompt is empty")
        if (highest := max(tokens)) >= self._vocab_size:
            raise EngineError(
                "bad_request", f"token {highest} is not among the model's {self._vocab_size}"
            )
        return tokens

    def _submit(
        self,
        job: PrefillJob | GenerateJob,
        tokens: list[int],
        params: SamplingParams,
        cache_salt: str | None = None,
    ) -> None:
        if job.request in self._jobs:
            raise EngineError("bad_request", f"request {job.request} is under way already")
        if len(tokens) >= self._max_context:
            raise EngineError(
                "too_long",
                f"the prompt has {len(tokens)} tokens, and with an answer the context here has "
                f"room for {self._max_context}",
            )
        try:
            prompt: TokensPrompt = {"prompt_token_ids": tokens}
            if cache_salt is not None:
                prompt["cache_salt"] = cache_salt
            vllm_id = self._llm.add_request(job.request, prompt, params)
        except ValueError as error:
            raise EngineError("bad_request", str(error)) from error
        self._jobs[job.request] = job
        self._vllm_ids[job.request] = vllm_id
        self._handoff.add(vllm_id, job)

    def _advance(self, job: PrefillJob | GenerateJob, output: Any) -> None:
        if output.finished and output.outputs[0].finish_reason not in ("stop", "length"):
            job.fail(f"vLLM gave the request up ({output.outputs[0].finish_reason})")
        elif job.advance(output):
            del self._jobs[job.request]
            self._handoff.remove(self._vllm_ids.pop(job.request))

    def _fail(self, job: PrefillJob | GenerateJob) -> None:
        reason = job.failure or "unknown"
        logger.error("request {} failed: {}", job.request, reason)
        self.cancel(job.request)
        self._outbox.send(Failed(request=job.request, code="engine", reason=reason))


def _sampling_params(sampling: Sampling, room: int) -> SamplingParams:
    """Translate to vLLM's terms; `room` is how many tokens the context has left."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import RequestOutputKind

    try:
        return SamplingParams(
            max_tokens=max(1, min(sampling.max_tokens or room, room)),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            stop=list(sampling.stop),
            output_kind=RequestOutputKind.DELTA,
        )
    except (VLLMClientError, ValueError) as error:
        raise EngineError("bad_request", str(error)) from error


def _device_name() -> str:
    from vllm.platforms import current_platform

    return "cpu" if current_platform.is_cpu() else current_platform.get_device_name()


def _refuse_to_inject() -> NoReturn:
    raise EngineError("unsupported", "vLLM injects no caches computed elsewhere yet")
