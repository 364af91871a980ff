"""The hand-off with real engines: the answers, whichever way the prompt is read."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from bench.client import measure_engine
from bench.nodes import LocalNode
from tests.support.api import MODEL, chat, load, streaming, until
from tests.support.prompts import question

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

Pair = tuple[LocalNode, LocalNode]

PROMPTS = [
    (1, "Answer the following question about the notebook above. What did the lamp burn?"),
    (3, "What is the name of the lighthouse?"),
    (3, "List the three kinds of trouble at the station."),
    (6, "What is the name of the lighthouse?"),
]
"""Paragraphs, and a question whose answer does not hang on a near tie.

vLLM computes in bfloat16 here and MLX in float32. Where the two most likely tokens are closer than
that difference, the two ways may go apart, as two machines with different kernels may. In float32
the answers to these are ahead by 0.18 to 0.51 logits at every token, and a prefill in bfloat16
changes the closest call of each by 0.1 at most (both by transformers).
"""


@pytest.mark.parametrize(("paragraphs", "ask"), PROMPTS)
def test_the_answer_is_the_same_wherever_the_prompt_is_read(pair: Pair, paragraphs: int, ask: str):
    prefill, decode = pair
    prompt = question(paragraphs, ask)
    remote, report = chat(decode, prompt, prefill="remote")
    assert report["prefill"] == "remote", report["reason"]
    assert report["prefill_node"] == prefill.document("/v1/cluster")["self"]
    tokens = report["tokens"]
    assert 150 < tokens["prompt"] < 1800
    assert tokens["computed"] + tokens["cached_remote"] == tokens["prompt"]
    # 30 layers of keys and values, 3 heads of 64, two bytes each; the last token is decoded.
    assert report["raw_bytes"] == (tokens["prompt"] - 1) * 30 * 2 * 3 * 64 * 2
    assert 0 <= report["hidden_ms"] <= report["transfer_ms"]
    local, local_report = chat(decode, prompt, prefill="local")
    assert local_report["prefill"] == "local"
    assert local_report["bytes"] == 0
    assert remote == local
    assert len(remote.split()) > 3


def test_a_repeated_prompt_comes_from_the_prefill_engines_cache(pair: Pair):
    _, decode = pair
    prompt = question(2, "Say it again: what moved in the storm?")
    first, _ = chat(decode, prompt, prefill="remote")
    second, report = chat(decode, prompt, prefill="remote")
    assert first == second
    assert report["tokens"]["cached_remote"] > 0
    assert report["tokens"]["cached_remote"] % 128 == 0


def test_the_node_without_a_decode_engine_passes_requests_on(pair: Pair):
    prefill, decode = pair
    prompt = question(1, "What is this about?")
    there, report = chat(prefill, prompt, prefill="remote")
    here, _ = chat(decode, prompt, prefill="remote")
    assert there == here
    assert report["prefill"] == "remote"


def test_long_prompts_go_to_vllm_and_short_ones_stay_by_themselves(pair: Pair):
    _, decode = pair
    _, long = chat(decode, question(4, "What is a keeper?"), max_tokens=2)
    _, short = chat(decode, "What is a keeper?", max_tokens=2)
    assert (long["prefill"], short["prefill"]) == ("remote", "local")
    assert "--remote-prefill-min-tokens" in short["reason"]


def test_a_stream_tells_how_far_the_prompt_is_and_ends_with_the_report(pair: Pair):
    _, decode = pair
    with streaming(decode, question(7, "Who came last?"), prefill="local", max_tokens=4) as lines:
        text = list(lines)
    progress = [
        match.groups() for line in text if (match := re.match(r": prompt (\d+)/(\d+)", line))
    ]
    done = [int(each) for each, _ in progress]
    assert done == sorted(set(done))
    assert len(done) > 2
    assert text[-2:] == ["data: [DONE]", ""] or text[-1] == "data: [DONE]"
    assert any('"x_baton"' in line and '"finish_reason":"length"' in line for line in text)


def test_the_prefill_engine_can_be_measured_alone(pair: Pair):
    prefill, decode = pair
    tokens, seconds = measure_engine(prefill.api, MODEL, question(3, "Why?"))
    assert tokens > 400
    assert 0 < seconds < 120
    url = f"http://{decode.api}/v1/prefill/measure"
    refused = httpx.post(
        url, json={"model": MODEL, "messages": [{"role": "user", "content": "a"}]}, timeout=30
    )
    assert refused.status_code == 503
    assert "baton status" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("way", "phase"), [("remote", "start"), ("local", "prefill"), ("remote", "decode")]
)
def test_a_client_that_leaves_frees_the_engines(pair: Pair, way: str, phase: str):
    with streaming(
        pair[1], question(9, f"Talk about {phase}."), prefill=way, max_tokens=400
    ) as lines:
        for line in lines:
            if phase == "start" and line.startswith("data: "):
                break
            if phase == "prefill" and line.startswith(": prompt"):
                break
            if phase == "decode" and '"content":"' in line and '"content":""' not in line:
                break
        else:
            pytest.fail("the answer ended before the client left")
        assert any(load(node) for node in pair)
    # Its load is told four times a second; the rest is for this busy machine.
    assert until(lambda: not any(load(node) for node in pair), seconds=5) < 5
    assert chat(pair[1], "Hello", max_tokens=1)[1]["prefill"] == "local"


def test_several_at_once(pair: Pair):
    prompts = [question(1, f"Number {index}: what is a lighthouse?") for index in range(4)]
    alone = [chat(pair[1], prompt, prefill="remote")[0] for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(chat, pair[index % 2], prompt, prefill="remote")
            for index, prompt in enumerate(prompts)
        ]
        together = [job.result()[0] for job in jobs]
    assert together == alone
