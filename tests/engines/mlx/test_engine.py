"""The engine with a tiny random model, against transformers in float32."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engines.base import EngineError
from engines.config import read_config
from engines.fingerprint import fingerprint
from protocols.cache import AttentionLayer
from protocols.chat import Message, Sampling
from protocols.engine import (
    Finished,
    Generate,
    GenerateStarted,
    Inject,
    InjectRejected,
    Load,
    Prefill,
    Progress,
    Receive,
    Token,
)
from protocols.kv_prefill.messages import Chunk, pack_tokens
from tests.support.engines import answer_of, drive, generate
from tests.support.reference import Reference, write_tiny_llama

pytest.importorskip("mlx.core")

if TYPE_CHECKING:
    from tests.engines.mlx.conftest import Loaded

pytestmark = pytest.mark.engine

PROMPT = [(index * 7919 + 11) % 40_000 + 100 for index in range(40)]
END = len(PROMPT) - 1


def greedy(count: int, **settings: object) -> Sampling:
    return Sampling(**{"max_tokens": count, "temperature": 0.0, **settings})


def inject(loaded: "Loaded", request: str, chunks: list[tuple[Chunk, bytes]]) -> None:
    loaded.engine.receive(Receive(request=request, start=0, end=END))
    for chunk, payload in chunks:
        loaded.engine.inject(Inject(request=request, chunk=chunk), memoryview(payload))


def test_what_it_can(tiny: "Loaded", tiny_path: Path):
    capabilities = tiny.capabilities
    assert capabilities.engine == "mlx"
    assert capabilities.layout.layers == (AttentionLayer(kv_heads=2, k_dim=16, v_dim=16),) * 3
    assert capabilities.layout.dtype == "bfloat16"
    assert capabilities.layout.fingerprint == fingerprint(read_config(tiny_path))
    assert (capabilities.max_context, capabilities.vocab_size) == (512, 49152)
    assert (capabilities.can_prefill, capabilities.can_inject, capabilities.can_generate) == (
        False,
        True,
        True,
    )
    assert capabilities.prefill_tokens_per_s > capabilities.decode_tokens_per_s > 0
    assert tiny.stages[0] == "libraries"
    assert tiny.stages[-1] == "ready"


@pytest.mark.parametrize("length", [1, 2, 17, 40])
def test_greedy_answers_are_those_of_transformers(
    tiny: "Loaded", tiny_reference: Reference, length: int
):
    answer = generate(tiny.engine, tiny.outbox, "r", PROMPT[:length], greedy(12))
    assert answer.tokens == tiny_reference.greedy(PROMPT[:length], 12)
    assert answer.finished.reason == "length"
    assert (answer.finished.prompt_tokens, answer.finished.completion_tokens) == (length, 12)
    (started,) = tiny.outbox.of(GenerateStarted)
    assert (started.injected, started.cached) == (0, 0)
    assert started.compute == (length if length > 1 else 0)


def test_progress_ends_at_the_whole(tiny: "Loaded"):
    generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(1))
    progress = tiny.outbox.of(Progress)
    assert [p.done for p in progress] == sorted({p.done for p in progress})
    assert progress[-1].done == progress[-1].total == END


@pytest.mark.parametrize("codec", ["raw", "planes"])
def test_an_injected_cache_gives_the_local_answer(
    tiny: "Loaded", tiny_reference: Reference, codec: str
):
    inject(tiny, "r", tiny_reference.chunks(PROMPT, END, piece=16, codec=codec))  # pyright: ignore[reportArgumentType]
    answer = generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(12))
    assert answer.tokens == tiny_reference.greedy(PROMPT, 12)
    (started,) = tiny.outbox.of(GenerateStarted)
    assert (started.injected, started.compute) == (END, 0)
    assert answer.finished.prefill_s == 0
    assert not tiny.outbox.of(Progress)


def test_a_wrong_cache_gives_another_answer(tiny: "Loaded", tiny_reference: Reference):
    """The control of the test above: what is injected is what is decoded from."""
    inject(tiny, "r", tiny_reference.chunks(PROMPT[::-1], END, piece=16))
    answer = generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(12))
    assert answer.tokens != tiny_reference.greedy(PROMPT, 12)


def test_what_a_layer_lacks_is_computed(tiny: "Loaded", tiny_reference: Reference):
    chunks = tiny_reference.chunks(PROMPT, END, piece=16)
    lacking = [(c, p) for c, p in chunks if (c.layer, c.start) not in {(1, 32), (2, 16)}]
    inject(tiny, "r", lacking)
    answer = generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(12))
    assert answer.tokens == tiny_reference.greedy(PROMPT, 12)
    (started,) = tiny.outbox.of(GenerateStarted)
    assert (started.injected, started.compute) == (16, len(PROMPT) - 16)


def test_a_damaged_chunk_is_rejected_and_computed(tiny: "Loaded", tiny_reference: Reference):
    chunks = tiny_reference.chunks(PROMPT, END, piece=16)
    index = next(i for i, (c, _) in enumerate(chunks) if (c.layer, c.start) == (1, 16))
    damaged = bytearray(chunks[index][1])
    damaged[-1] ^= 1
    chunks[index] = (chunks[index][0], bytes(damaged))
    inject(tiny, "r", chunks)
    (rejected,) = tiny.outbox.of(InjectRejected)
    assert (rejected.request, rejected.layer, rejected.start, rejected.end) == ("r", 1, 16, 32)
    answer = generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(12))
    assert answer.tokens == tiny_reference.greedy(PROMPT, 12)
    assert tiny.outbox.of(GenerateStarted)[0].injected == 16


def test_room_asked_for_again_keeps_what_came(tiny: "Loaded", tiny_reference: Reference):
    chunks = tiny_reference.chunks(PROMPT, END, piece=16)
    inject(tiny, "r", chunks[:4])
    inject(tiny, "r", chunks[4:])
    generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(1))
    assert tiny.outbox.of(GenerateStarted)[0].injected == END


def test_an_answer_that_outgrows_its_room(tiny: "Loaded", tiny_reference: Reference):
    prompt = (PROMPT * 5)[:187]
    end = len(prompt) - 1
    assert end + 64 < 256 < len(prompt) + 72, "room is made in steps of 256 tokens"
    tiny.engine.receive(Receive(request="r", start=0, end=end))
    for chunk, payload in tiny_reference.chunks(prompt, end, piece=256):
        tiny.engine.inject(Inject(request="r", chunk=chunk), memoryview(payload))
    answer = generate(tiny.engine, tiny.outbox, "r", prompt, greedy(72))
    assert len(answer.tokens) == 72
    assert answer.tokens == tiny_reference.greedy(prompt, 72, rounded=True)


def test_the_context_limits_the_answer(tiny: "Loaded"):
    prompt = (PROMPT * 13)[:508]
    for request, limit in (("all", 0), ("more", 99)):
        answer = generate(tiny.engine, tiny.outbox, request, prompt, greedy(limit))
        assert answer.finished.reason == "length"
        assert len(answer.tokens) == 4


def test_requests_together_are_answered_as_alone(tiny: "Loaded", tiny_reference: Reference):
    prompts = {f"r{n}": PROMPT[n:] for n in range(4)}
    inject(tiny, "r0", tiny_reference.chunks(PROMPT, END, piece=64))
    for request, prompt in prompts.items():
        tiny.engine.generate(
            Generate(request=request, tokens=pack_tokens(prompt), sampling=greedy(8))
        )
    drive(tiny.engine)
    for request, prompt in prompts.items():
        assert answer_of(tiny.outbox, request).tokens == tiny_reference.greedy(prompt, 8)
    order = [token.request for token in tiny.outbox.of(Token)]
    assert order != sorted(order), "they took no turns"


def test_seeds(tiny: "Loaded"):
    def sampled(request: str, seed: int) -> list[int]:
        sampling = Sampling(max_tokens=8, temperature=1.0, seed=seed)
        return generate(tiny.engine, tiny.outbox, request, PROMPT, sampling).tokens

    first = sampled("a", 1)
    tiny.engine.generate(
        Generate(request="other", tokens=pack_tokens(PROMPT), sampling=Sampling(max_tokens=30))
    )
    assert sampled("b", 1) == first
    tiny.engine.cancel("other")
    assert sampled("c", 2) != first


def test_cancelling_while_writing(tiny: "Loaded"):
    tiny.engine.generate(Generate(request="r", tokens=pack_tokens(PROMPT), sampling=greedy(100)))
    drive(tiny.engine, until=lambda: len(tiny.outbox.of(Token)) >= 3)
    tiny.engine.cancel("r")
    said = len(tiny.outbox.messages)
    assert not tiny.engine.step()
    assert len(tiny.outbox.messages) == said


def test_cancelling_while_reading(tiny: "Loaded"):
    prompt = (PROMPT * 12)[:400]
    tiny.engine.generate(Generate(request="r", tokens=pack_tokens(prompt), sampling=greedy(5)))
    assert tiny.engine.step()
    assert tiny.outbox.of(Progress)
    tiny.engine.cancel("r")
    assert not tiny.engine.step()
    assert not tiny.outbox.of(Token)
    assert not tiny.outbox.of(Finished)


def test_cancelling_an_injection_frees_it(tiny: "Loaded", tiny_reference: Reference):
    chunks = tiny_reference.chunks(PROMPT, END, piece=16)
    inject(tiny, "r", chunks)
    tiny.engine.cancel("r")
    tiny.engine.cancel("never heard of")
    chunk, payload = chunks[0]
    tiny.engine.inject(Inject(request="r", chunk=chunk), memoryview(payload))
    assert not tiny.outbox.messages
    generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(1))
    assert tiny.outbox.of(GenerateStarted)[0].injected == 0


def test_stop_strings_across_tokens(tiny: "Loaded"):
    plain = generate(tiny.engine, tiny.outbox, "plain", PROMPT, greedy(12)).text
    stop = plain[5:12]
    at = plain.index(stop)
    answer = generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(12, stop=(stop, "never")))
    assert answer.text == plain[:at]
    assert answer.finished.reason == "stop"
    almost = plain[-3:] + "\0"
    answer = generate(tiny.engine, tiny.outbox, "held", PROMPT, greedy(12, stop=(almost,)))
    assert (answer.text, answer.finished.reason) == (plain, "length")
    assert answer.finished.text.endswith(plain[-3:])


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        (b"", "bad_request"),
        (b"\1\0\0", "bad_request"),
        (pack_tokens([5, 49152]), "bad_request"),
        (pack_tokens([5] * 512), "too_long"),
    ],
)
def test_prompts_that_cannot_be_answered(tiny: "Loaded", tokens: bytes, code: str):
    with pytest.raises(EngineError) as refused:
        tiny.engine.generate(Generate(request="r", tokens=tokens, sampling=greedy(1)))
    assert refused.value.code == code
    assert not tiny.engine.step()


@pytest.mark.parametrize(
    ("start", "end", "code"), [(3, 9, "unsupported"), (0, 0, "bad_request"), (0, 512, "too_long")]
)
def test_ranges_that_cannot_be_received(tiny: "Loaded", start: int, end: int, code: str):
    with pytest.raises(EngineError) as refused:
        tiny.engine.receive(Receive(request="r", start=start, end=end))
    assert refused.value.code == code


def test_a_cache_that_leaves_no_token_to_decode(tiny: "Loaded"):
    tiny.engine.receive(Receive(request="r", start=0, end=len(PROMPT)))
    with pytest.raises(EngineError, match="last token"):
        tiny.engine.generate(Generate(request="r", tokens=pack_tokens(PROMPT), sampling=greedy(1)))


def test_one_answer_for_each_request(tiny: "Loaded"):
    message = Generate(request="r", tokens=pack_tokens(PROMPT), sampling=greedy(3))
    tiny.engine.generate(message)
    with pytest.raises(EngineError, match="already"):
        tiny.engine.generate(message)
    tiny.engine.cancel("r")


def test_it_does_not_prefill(tiny: "Loaded"):
    message = Prefill(request="r", tokens=pack_tokens(PROMPT), start=0, end=END, codec="raw")
    with pytest.raises(EngineError) as refused:
        tiny.engine.prefill(message)
    assert refused.value.code == "unsupported"


def test_messages_are_templated(tiny: "Loaded"):
    system = tiny.engine.tokenize([Message("system", "Short."), Message("user", "Hi")])
    assert tiny.engine.tokenize([Message("developer", "Short."), Message("user", "Hi")]) == system
    assert tiny.engine.tokenize([Message("user", "Hi")]) != system
    with pytest.raises(EngineError) as refused:
        tiny.engine.tokenize([])
    assert refused.value.code == "bad_request"


class TestLoading:
    @pytest.fixture
    def copy(self, tiny_path: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(tiny_path, tmp_path / "copy"))

    @pytest.fixture
    def load(self, tiny: "Loaded"):
        return lambda path: type(tiny)(path)

    def edit(self, path: Path, **changes: object) -> None:
        config = {**json.loads((path / "config.json").read_text()), **changes}
        kept = {key: value for key, value in config.items() if value is not None}
        (path / "config.json").write_text(json.dumps(kept))

    def test_the_rope_base_is_read_from_either_spelling(self, copy: Path, load, tiny: "Loaded"):
        right = generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(8)).tokens
        assert "rope_theta" not in read_config(copy)
        self.edit(copy, rope_parameters=None, rope_theta=500_000.0)
        spelled = load(copy)
        assert generate(spelled.engine, spelled.outbox, "r", PROMPT, greedy(8)).tokens == right

    def test_another_rope_base_gives_another_answer(self, copy: Path, load, tiny: "Loaded"):
        right = generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(8)).tokens
        self.edit(copy, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
        wrong = load(copy)
        assert generate(wrong.engine, wrong.outbox, "r", PROMPT, greedy(8)).tokens != right
        assert wrong.capabilities.layout.fingerprint != tiny.capabilities.layout.fingerprint

    def test_yarn_in_the_new_spelling_is_that_of_transformers(self, copy: Path, load):
        self.edit(
            copy,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        )
        loaded = load(copy)
        answer = generate(loaded.engine, loaded.outbox, "r", PROMPT, greedy(8))
        assert answer.tokens == Reference(copy).greedy(PROMPT, 8)

    def test_without_a_chat_template_there_is_no_chat(self, copy: Path, load):
        (copy / "chat_template.jinja").unlink()
        with pytest.raises(EngineError) as refused:
            load(copy).engine.tokenize([Message("user", "Hi")])
        assert refused.value.code == "unsupported"

    def test_a_template_that_refuses(self, copy: Path, load):
        (copy / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
        with pytest.raises(EngineError, match="no system role"):
            load(copy).engine.tokenize([Message("system", "Hi")])

    def test_any_of_several_end_tokens_ends(self, copy: Path, load, tiny: "Loaded"):
        right = generate(tiny.engine, tiny.outbox, "r", PROMPT, greedy(8)).tokens
        (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, right[3]]}))
        loaded = load(copy)
        answer = generate(loaded.engine, loaded.outbox, "r", PROMPT, greedy(8))
        assert answer.tokens == right[: right.index(right[3]) + 1]
        assert answer.finished.reason == "stop"

    def test_caps_on_tokens_and_memory(self, tiny: "Loaded", tiny_path: Path):
        engine = type(tiny.engine)(tiny.outbox)
        per_token = 3 * 2 * 2 * 16 * 4
        for cap in ({"max_context": 100}, {"memory_bytes": 100 * per_token + 1}):
            load = Load(model="m", path=str(tiny_path), **cap)
            assert engine.load(load, lambda stage, fraction: None).max_context == 100

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_type": "no_such_model"}, "no_such_model"),
            ({"vocab_size": None}, "vocab_size"),
            ({"hidden_size": 128}, "cannot load"),
            ({"max_position_embeddings": None}, "context length"),
        ],
    )
    def test_configs_that_cannot_be_loaded(self, copy: Path, load, changes, message: str):
        self.edit(copy, **changes)
        with pytest.raises(EngineError, match=message):
            load(copy)

    def test_no_checkpoint_at_all(self, tmp_path: Path, load):
        with pytest.raises(EngineError, match="no checkpoint"):
            load(tmp_path / "nothing")

    def test_a_model_with_windows_answers_but_takes_no_caches(
        self, tmp_path: Path, tiny: "Loaded", smollm2_path: Path, load
    ):
        path = write_tiny_llama(tmp_path / "windows", smollm2_path)
        self.edit(
            path, sliding_window=16, layer_types=["full_attention", *["sliding_attention"] * 2]
        )
        loaded = load(path)
        assert not loaded.capabilities.can_inject
        assert "RotatingKVCache" in loaded.capabilities.obstacle
        assert generate(loaded.engine, loaded.outbox, "r", PROMPT, greedy(4)).tokens
        with pytest.raises(EngineError) as refused:
            loaded.engine.receive(Receive(request="i", start=0, end=4))
        assert refused.value.code == "unsupported"

    def test_unloading(self, tiny: "Loaded", tiny_path: Path, load):
        loaded = load(tiny_path)
        loaded.engine.unload()
        assert not loaded.engine.step()
        with pytest.raises(EngineError, match="no model"):
            loaded.engine.tokenize([Message("user", "Hi")])
