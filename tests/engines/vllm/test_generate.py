"""vLLM writing answers, and refusing what it cannot do."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

from engines.base import EngineError
from engines.vllm.engine import create
from engines.vllm.start import CPU_STEP_TOKENS, read_config
from protocols.chat import Message, Sampling
from protocols.engine import (
    Finished,
    Generate,
    GenerateStarted,
    Inject,
    Load,
    Prefill,
    Progress,
    Receive,
    Token,
)
from protocols.kv_prefill.messages import Chunk, pack_tokens
from tests.engines.vllm.conftest import BLOCK, MAX_CONTEXT, Reference, Running
from tests.support.engines import MemoryOutbox, MemorySink, answer_of, drive, generate

pytestmark = pytest.mark.engine

QUESTION = (Message("user", "What is the capital of France? Answer in one sentence."),)
GREEDY = Sampling(max_tokens=24, temperature=0.0)

_names = (f"answer-{number}" for number in itertools.count())


def ask(running: Running, sampling: Sampling, tokens: list[int] | None = None) -> str:
    prompt = tokens or running.engine.tokenize(QUESTION)
    return generate(running.engine, running.outbox, next(_names), prompt, sampling).text


def test_capabilities_say_what_was_loaded(running: Running) -> None:
    capabilities = running.capabilities
    assert (capabilities.engine, capabilities.device) == ("vllm", "cpu")
    assert (capabilities.can_prefill, capabilities.can_generate) == (True, True)
    assert (capabilities.can_inject, capabilities.obstacle) == (False, "")
    assert (capabilities.max_context, capabilities.vocab_size) == (MAX_CONTEXT, 49_152)
    assert len(capabilities.layout.layers) == 30
    assert capabilities.layout.nbytes(0, 1) == 2 * 3 * 64 * 2
    assert capabilities.prefill_tokens_per_s > capabilities.decode_tokens_per_s > 0


def test_messages_are_templated_as_transformers_does(running: Running, smollm2_path: Path) -> None:
    from transformers import AutoTokenizer

    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    expected = AutoTokenizer.from_pretrained(smollm2_path).apply_chat_template(
        said, add_generation_prompt=True, return_dict=False
    )
    for role in ("system", "developer"):
        messages = (Message(role, "Be brief."), Message("user", "Hi"))
        assert running.engine.tokenize(messages) == expected


def test_loading_reports_its_progress(running: Running) -> None:
    fractions = [fraction for _, fraction in running.stages]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def test_greedy_answer_is_that_of_transformers(running: Running, reference: Reference) -> None:
    prompt = running.engine.tokenize(QUESTION)
    name = next(_names)
    answer = generate(running.engine, running.outbox, name, prompt, GREEDY)
    expected = reference.greedy(tuple(prompt), GREEDY.max_tokens)
    assert answer.tokens[: len(expected)] == expected
    assert "Paris" in answer.text
    assert (answer.finished.reason, answer.finished.prompt_tokens) == ("stop", len(prompt))
    assert answer.finished.completion_tokens == len(answer.tokens)
    (started,) = running.outbox.of(GenerateStarted, name)
    assert (started.injected, started.cached + started.compute) == (0, len(prompt))


def test_text_comes_token_by_token(running: Running) -> None:
    name = next(_names)
    prompt = running.engine.tokenize(QUESTION)
    running.engine.generate(Generate(request=name, tokens=pack_tokens(prompt), sampling=GREEDY))
    running.engine.step()
    assert [token.text for token in running.outbox.of(Token, name)] == ["The"]
    drive(running.engine)


def test_stop_string_and_what_follows_never_leave(running: Running) -> None:
    whole = ask(running, GREEDY)
    stop = "l of Fr"
    assert stop in whole
    sampling = Sampling(max_tokens=24, temperature=0.0, stop=("no such words", stop))
    assert ask(running, sampling) == whole[: whole.index(stop)]


def test_held_back_start_of_a_stop_string_is_given_in_the_end(running: Running) -> None:
    whole = ask(running, GREEDY)
    sampling = Sampling(max_tokens=24, temperature=0.0, stop=(whole[-3:] + " and more",))
    assert ask(running, sampling) == whole


def test_length_is_the_reason_when_tokens_run_out(running: Running) -> None:
    name = next(_names)
    prompt = running.engine.tokenize(QUESTION)
    sampling = Sampling(max_tokens=3, temperature=0.0)
    answer = generate(running.engine, running.outbox, name, prompt, sampling)
    assert (answer.finished.reason, answer.finished.completion_tokens) == ("length", 3)


def test_seed_makes_sampling_repeatable(running: Running) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.5, top_p=0.95, top_k=50, seed=7)
    assert ask(running, sampling) == ask(running, sampling)
    other = Sampling(max_tokens=12, temperature=1.5, top_p=0.95, top_k=50, seed=8)
    assert ask(running, sampling) != ask(running, other)


def test_answer_without_a_limit_ends_with_the_context(running: Running) -> None:
    name = next(_names)
    prompt = running.prompt(MAX_CONTEXT - 3, 40)
    answer = generate(running.engine, running.outbox, name, prompt, Sampling(temperature=0.0))
    assert answer.finished.completion_tokens <= 3
    progress = running.outbox.of(Progress, name)
    assert [each.done for each in progress] == list(
        range(CPU_STEP_TOKENS, len(prompt), CPU_STEP_TOKENS)
    )
    assert {each.total for each in progress} == {len(prompt)}


def test_answers_are_written_side_by_side(running: Running) -> None:
    alone = ask(running, GREEDY)
    names = [next(_names) for _ in range(3)]
    for name in names:
        prompt = running.engine.tokenize(QUESTION)
        running.engine.generate(Generate(request=name, tokens=pack_tokens(prompt), sampling=GREEDY))
    drive(running.engine)
    assert [answer_of(running.outbox, name).text for name in names] == [alone] * 3


def test_cancelled_answer_says_nothing_more(running: Running) -> None:
    name = next(_names)
    prompt = running.engine.tokenize(QUESTION)
    running.engine.generate(Generate(request=name, tokens=pack_tokens(prompt), sampling=GREEDY))
    running.engine.step()
    running.engine.cancel(name)
    assert not running.engine.step()
    assert not running.outbox.of(Finished, name)
    running.engine.cancel("never heard of")


@pytest.mark.parametrize(
    ("tokens", "start", "end", "code"),
    [
        (b"", 0, 0, "bad_request"),
        (b"", 0, 1, "bad_request"),
        (pack_tokens([5, 6]), 0, 0, "bad_request"),
        (pack_tokens([5, 6]), 1, 1, "bad_request"),
        (pack_tokens([5, 6]), -1, 2, "bad_request"),
        (pack_tokens([5, 6]), 0, 3, "bad_request"),
        (pack_tokens([5, 6])[:-1], 0, 1, "bad_request"),
        (pack_tokens([5, 49_152]), 0, 2, "bad_request"),
        (pack_tokens([5, 2**32 - 1]), 0, 2, "bad_request"),
        (pack_tokens([5] * MAX_CONTEXT), 0, MAX_CONTEXT, "too_long"),
    ],
)
def test_impossible_prefills_are_refused(
    running: Running, tokens: bytes, start: int, end: int, code: str
) -> None:
    request = Prefill(request=next(_names), tokens=tokens, start=start, end=end, codec="raw")
    with pytest.raises(EngineError) as refusal:
        running.engine.prefill(request)
    assert refusal.value.code == code
    assert not running.engine.step()


@pytest.mark.parametrize(
    ("tokens", "sampling", "code"),
    [
        (b"", GREEDY, "bad_request"),
        (pack_tokens([49_152]), GREEDY, "bad_request"),
        (pack_tokens([5] * MAX_CONTEXT), GREEDY, "too_long"),
        (pack_tokens([5]), Sampling(temperature=-1.0), "bad_request"),
        (pack_tokens([5]), Sampling(top_p=1.5), "bad_request"),
        (pack_tokens([5]), Sampling(top_k=-7), "bad_request"),
        (pack_tokens([5]), Sampling(stop=("",)), "bad_request"),
    ],
)
def test_impossible_answers_are_refused(
    running: Running, tokens: bytes, sampling: Sampling, code: str
) -> None:
    with pytest.raises(EngineError) as refusal:
        running.engine.generate(Generate(request=next(_names), tokens=tokens, sampling=sampling))
    assert refusal.value.code == code
    assert not running.engine.step()


def test_injecting_is_refused(running: Running) -> None:
    chunk = Chunk(0, 0, 1, "raw", 4, 4, b"")
    with pytest.raises(EngineError, match="injects no caches"):
        running.engine.receive(Receive(request="r", start=0, end=1))
    with pytest.raises(EngineError, match="injects no caches"):
        running.engine.inject(Inject(request="r", chunk=chunk), memoryview(b"abcd"))


@pytest.mark.parametrize(
    ("template", "code", "reason"),
    [
        (None, "unsupported", "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "bad_request", "roles must alternate"),
    ],
)
def test_conversations_that_cannot_be_tokenized_are_refused(
    running: Running,
    smollm2_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    template: str | None,
    code: str,
    reason: str,
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_path)
    tokenizer.chat_template = template
    monkeypatch.setattr(running.engine._llm.renderer, "tokenizer", tokenizer)
    with pytest.raises(EngineError, match=reason) as refusal:
        running.engine.tokenize(QUESTION)
    assert refusal.value.code == code


def test_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    outbox = MemoryOutbox()
    engine = create(outbox, MemorySink(outbox))
    with pytest.raises(EngineError, match="is no checkpoint"):
        engine.load(Load(model="m", path=str(tmp_path)), lambda stage, fraction: None)
    engine.unload()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model_type": 1}'])
def test_unreadable_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(EngineError, match="is no checkpoint"):
        read_config(tmp_path)


def test_unknown_architecture_is_refused_with_its_reason(
    tmp_path: Path, smollm2_path: Path
) -> None:
    shutil.copytree(
        smollm2_path, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")
    )
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"architectures": ["NoSuchModel"], "model_type": "nosuch"}))
    outbox = MemoryOutbox()
    engine = create(outbox, MemorySink(outbox))
    with pytest.raises(EngineError, match="vLLM cannot load"):
        engine.load(
            Load(model="m", path=str(file.parent), memory_bytes=BLOCK << 20),
            lambda stage, fraction: None,
        )
    engine.unload()
