"""The engine with a real model; short, since pytest runs on the reference BLAS."""

from typing import TYPE_CHECKING

import pytest

from protocols.chat import Message, Sampling
from protocols.engine import GenerateStarted, Inject, Receive
from tests.support.engines import generate
from tests.support.reference import Reference

pytest.importorskip("mlx.core")

if TYPE_CHECKING:
    from tests.engines.mlx.conftest import Loaded

pytestmark = pytest.mark.engine

GREEDY = Sampling(max_tokens=8, temperature=0)


def test_it_answers_as_transformers_does(smollm2: "Loaded", smollm2_reference: Reference):
    prompt = smollm2.engine.tokenize([Message("user", "What is the capital of France?")])
    answer = generate(smollm2.engine, smollm2.outbox, "local", prompt[-12:], GREEDY)
    expected = smollm2_reference.greedy(prompt[-12:], 8)
    assert answer.tokens == expected[: len(answer.tokens)]
    assert len(answer.tokens) == 8 or answer.finished.reason == "stop"


def test_it_answers_from_an_injected_cache(smollm2: "Loaded", smollm2_reference: Reference):
    prompt = smollm2.engine.tokenize([Message("user", "What is the capital of France?")])
    end = len(prompt) - 1
    smollm2.engine.receive(Receive(request="injected", start=0, end=end))
    for chunk, payload in smollm2_reference.chunks(prompt, end, piece=16):
        smollm2.engine.inject(Inject(request="injected", chunk=chunk), memoryview(payload))
    answer = generate(smollm2.engine, smollm2.outbox, "injected", prompt, GREEDY)
    assert answer.text == "The capital of France is Paris."
    assert answer.finished.reason == "stop"
    (started,) = smollm2.outbox.of(GenerateStarted, "injected")
    assert (started.injected, started.compute) == (end, 0)
    assert answer.tokens == smollm2_reference.greedy(prompt, 8)
