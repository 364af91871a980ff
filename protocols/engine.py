"""The messages between a node and its engine processes.

They go over a Unix socketpair in the frames of `protocols.framing`. `PrefillChunk` and `Inject`
are followed by `chunk.size` payload bytes, which the node passes on without looking inside.

Where node and engine share memory (`Share`, answered by `Shared`), a payload may lie there instead,
from byte `at` of the region on, and nothing follows. There is a region for each direction. Whoever
writes to it says which parts are in use; the other side says when it has read a payload for the
last time: the node by `Acknowledge`, or for all of a request by `Cancel`, the engine by `Injected`,
or for all of a request by its terminal message.

Every request (`Prefill`, `Generate`, `Tokenize`) gets exactly one terminal message:
`PrefillFinished`, `Finished`, `Tokenized`, `Cancelled` or `Failed`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from protocols.cache import CacheLayout, DType
from protocols.chat import Message, Sampling
from protocols.kv_prefill.messages import Chunk, Codec, Timings

__all__ = [
    "Acknowledge",
    "Cancel",
    "Cancelled",
    "Capabilities",
    "EngineMessage",
    "EngineName",
    "Failed",
    "FailureCode",
    "FinishReason",
    "Finished",
    "Generate",
    "GenerateStarted",
    "Inject",
    "InjectRejected",
    "Injected",
    "Load",
    "LoadFailed",
    "Loaded",
    "Loading",
    "NodeMessage",
    "Prefill",
    "PrefillChunk",
    "PrefillFinished",
    "PrefillStarted",
    "Progress",
    "Receive",
    "Share",
    "Shared",
    "Shutdown",
    "Token",
    "Tokenize",
    "Tokenized",
]

EngineName: TypeAlias = Literal["mlx", "vllm"]
FinishReason: TypeAlias = Literal["stop", "length"]
FailureCode: TypeAlias = Literal[
    "bad_request", "too_long", "unsupported", "out_of_memory", "engine"
]


# From the node to the engine.


class Share(msgspec.Struct, frozen=True, tag="share"):
    """Offers memory; sent before anything else, if at all.

    Two file descriptors come with the frame (`SCM_RIGHTS`), of a region for each direction.
    """

    to_node: int
    """Bytes of the first, which the engine writes to."""
    to_engine: int
    """Bytes of the second, which the node writes to."""


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load the checkpoint at `path`; answered by `Loading`s and one `Loaded` or `LoadFailed`."""

    model: str
    path: str
    memory_bytes: int = 0
    """Budget for the KV cache; 0 leaves it to the engine."""
    max_context: int = 0
    """Cap on the context in tokens; 0 for the model's own."""


class Tokenize(msgspec.Struct, frozen=True, tag="tokenize"):
    """Apply the chat template to `messages` and tokenize."""

    request: str
    messages: tuple[Message, ...]


class Prefill(msgspec.Struct, frozen=True, tag="prefill"):
    """Compute the cache of `tokens[:end]` and hand out that of `[start, end)` in chunks.

    `tokens` is packed as in `/kv-prefill/1`. With `deliver` false the cache is computed and thrown
    away, and with `reuse` false no prefix cache is read, nor anything left in one: both are for
    measuring.
    """

    request: str
    tokens: bytes
    start: int
    end: int
    codec: Codec
    deliver: bool = True
    reuse: bool = True


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """`size` payload bytes of the prefill's chunks have left the node.

    The engine holds back what is over its limit of unacknowledged bytes, so that a slow receiver
    slows the computation down and fills no memory.
    """

    request: str
    size: int
    at: int | None = None
    """Of the chunk whose payload this is, if it was in shared memory."""


class Receive(msgspec.Struct, frozen=True, tag="receive"):
    """Make room for a cache of `[start, end)` that `Inject`s of the same request will bring.

    `end` is at most the prompt's length less one: the last token is decoded to get first logits.
    It may come again with another `dtype`, when the rest comes from another prefill engine: what
    has been injected stays.
    """

    request: str
    start: int
    end: int
    dtype: DType = "bfloat16"
    """Of the arrays that do not name their own in the layout: the sender's, not this engine's."""


class Inject(msgspec.Struct, frozen=True, tag="inject"):
    """One chunk of a cache computed elsewhere; its payload follows, or is in shared memory."""

    request: str
    chunk: Chunk
    at: int | None = None


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Write the answer to `tokens` (packed).

    Whatever prefix has been injected complete in every layer is used, the rest is computed.
    """

    request: str
    tokens: bytes
    sampling: Sampling


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop the request within one engine step and free what it holds; answered by `Cancelled`.

    A request that has ended, or was never heard of, is answered by `Cancelled` all the same.
    """

    request: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Unload and exit."""


# From the engine to the node.


class Shared(msgspec.Struct, frozen=True, tag="shared"):
    """The regions that were offered can be used."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """How far loading is."""

    stage: str
    fraction: float
    """From 0 to 1."""


class Capabilities(msgspec.Struct, frozen=True):
    """What a loaded engine can do."""

    engine: EngineName
    device: str
    layout: CacheLayout
    """Without layers where caches can be neither handed out nor taken in."""
    max_context: int
    """Tokens, prompt and answer together."""
    vocab_size: int
    can_prefill: bool
    can_inject: bool
    can_generate: bool
    prefill_tokens_per_s: float
    """From a short probe at load; refined by what `PrefillFinished` reports."""
    decode_tokens_per_s: float
    obstacle: str = ""
    """Why this model's caches cannot be handed from engine to engine; empty where they can."""


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The model is ready. `epoch` names this process and is in every handle it gives out."""

    epoch: str
    capabilities: Capabilities


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """The model cannot be loaded here; the engine process exits after it."""

    reason: str


class Tokenized(msgspec.Struct, frozen=True, tag="tokenized"):
    """The prompt as packed token ids."""

    request: str
    tokens: bytes


class PrefillStarted(msgspec.Struct, frozen=True, tag="prefill_started"):
    """The first step that holds the request has been scheduled."""

    request: str
    cached: int
    """Tokens of the prompt that the engine's prefix cache held."""
    codec: Codec
    """What the chunks will be encoded with; `raw` ones may be among `planes`."""


class PrefillChunk(msgspec.Struct, frozen=True, tag="prefill_chunk"):
    """One layer's cache of a token range; its payload follows, or is in shared memory."""

    request: str
    chunk: Chunk
    at: int | None = None


class PrefillFinished(msgspec.Struct, frozen=True, tag="prefill_finished"):
    """All chunks of `[start, end)` have been handed out."""

    request: str
    chunks: int
    raw_bytes: int
    sent_bytes: int
    computed: int
    """Tokens that were computed, not read from a prefix cache."""
    timings: Timings


class Injected(msgspec.Struct, frozen=True, tag="injected"):
    """The payload of an `Inject` in shared memory will not be read again, whatever became of it."""

    request: str
    at: int


class InjectRejected(msgspec.Struct, frozen=True, tag="inject_rejected"):
    """A chunk that could not be used (checksum, sizes); its positions count as missing."""

    request: str
    layer: int
    start: int
    end: int
    reason: str


class GenerateStarted(msgspec.Struct, frozen=True, tag="generate_started"):
    """How the prompt is being read."""

    request: str
    injected: int
    """Tokens whose injected cache is used."""
    cached: int
    """Tokens from this engine's own prefix cache."""
    compute: int
    """Tokens that this engine computes."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How much of the prompt the engine has computed of what it had to compute."""

    request: str
    done: int
    total: int


class Token(msgspec.Struct, frozen=True, tag="token"):
    """One generated token. `text` is what it adds to the answer; it may be empty."""

    request: str
    token: int
    text: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The answer is complete. `text` is what was still held back (a partial stop string)."""

    request: str
    reason: FinishReason
    text: str
    prompt_tokens: int
    completion_tokens: int
    prefill_s: float
    """Time this engine spent computing the prompt; 0 when all of it was injected."""
    decode_s: float


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """The request is gone; nothing more will be said of it."""

    request: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request is gone because it could not be done."""

    request: str
    code: FailureCode
    reason: str


NodeMessage: TypeAlias = (
    Share
    | Load
    | Tokenize
    | Prefill
    | Acknowledge
    | Receive
    | Inject
    | Generate
    | Cancel
    | Shutdown
)
EngineMessage: TypeAlias = (
    Shared
    | Loading
    | Loaded
    | LoadFailed
    | Tokenized
    | PrefillStarted
    | PrefillChunk
    | PrefillFinished
    | Injected
    | InjectRejected
    | GenerateStarted
    | Progress
    | Token
    | Finished
    | Cancelled
    | Failed
)
