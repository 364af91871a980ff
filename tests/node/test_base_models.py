import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from node.base_models import base_model, family
from tests.support.model_names import FORMS, NAMES

DIFFERENT = [
    ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"),
    ("Qwen/Qwen3-8B", "unsloth/Qwen3-8B-128K-GGUF"),
    ("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3"),
    ("Qwen/Qwen3-8B", "Qwen/Qwen3-VL-8B-Instruct"),
    ("Qwen/Qwen3-8B", "mlx-community/Josiefied-Qwen3-8B-abliterated-v1-4bit"),
    ("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"),
    ("Qwen/Qwen2.5-7B", "qwen2.5:7b"),
    ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-35B"),
    ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.6-35B-A3B"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B-Thinking-2507"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct-1M"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Math-7B-Instruct"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2-7B-Instruct"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"),
    ("Qwen/QwQ-32B", "Qwen/QwQ-32B-Preview"),
    ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ("meta-llama/Llama-3.1-8B-Instruct", "mlabonne/Meta-Llama-3.1-8B-Instruct-abliterated"),
    ("meta-llama/Llama-3.1-70B-Instruct", "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF"),
    ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf"),
    ("mistralai/Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("mistralai/Devstral-Small-2505", "mistralai/Devstral-Small-2507"),
    ("google/gemma-3-27b-it", "google/gemma-3-27b-pt"),
    ("google/gemma-3-4b-it", "google/gemma-3n-E4B-it"),
    ("google/gemma-3-4b-it", "google/medgemma-4b-it"),
    ("google/gemma-4-E4B-it", "mlx-community/gemma-4-E4B-it-assistant-bf16"),
    ("microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3-mini-128k-instruct"),
    ("microsoft/phi-4", "microsoft/Phi-4-reasoning"),
    ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3-0324"),
    ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.1"),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-ai/DeepSeek-R1"),
    ("openai/gpt-oss-20b", "openai/gpt-oss-120b"),
    ("openai/gpt-oss-20b", "openai/gpt-oss-safeguard-20b"),
    ("zai-org/GLM-4.5", "zai-org/GLM-4.5-Air"),
    ("zai-org/GLM-4.7", "0xSero/GLM-4.7-REAP-50-W4A16"),
    ("moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2-Instruct-0905"),
    ("ibm-granite/granite-4.0-h-micro", "ibm-granite/granite-4.0-micro"),
    ("a/model-v1", "a/model-v1.5"),
]

PATHS = {
    "/home/user/models/Qwen3-8B-4bit/": "qwen3-8b",
    "C:\\models\\Qwen3-8B-FP8": "qwen3-8b",
    "~/models/Qwen3-8B/gguf": "qwen3-8b",
    "models/Qwen3-8B/4bit/model.gguf": "qwen3-8b",
    "unsloth/Qwen3-8B-GGUF/unsloth.Q4_K_M.gguf": "qwen3-8b",
    "models--Qwen--Qwen3-8B/snapshots/9c925d64d72725edaf899c6cb9c377fd0709d9c5": "qwen3-8b",
    "/data/mlx-community--Qwen3-8B-4bit": "qwen3-8b",
    "Qwen3 8B (4bit)": "qwen3-8b-(4bit)",
    "qwen3_8b 4bit": "qwen3-8b",
    "4bit": "4bit",
    "GGUF/4bit": "4bit",
    "": "",
    "/": "/",
    "...": "",
    "Ünïcode-Modell-8B-4bit": "ünïcode-modell-8b",
}

FAMILIES = {
    "Qwen/Qwen3-8B": "qwen",
    "Qwen/QwQ-32B": "qwen",
    "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit": "llama",
    "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF": "llama",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistral",
    "mistralai/Devstral-Small-2507": "mistral",
    "google/gemma-3-27b-it": "gemma",
    "microsoft/phi-4": "phi",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "deepseek",
    "openai/gpt-oss-20b": "gpt-oss",
    "zai-org/GLM-4.5-Air": "glm",
    "bartowski/mistralai_Devstral-Small-2507-GGUF": "mistral",
    "CohereForAI/c4ai-command-r-08-2024": "command",
    "someone/philosopher-7b": "philosopher",
    "someone/Frobnicator2-7B": "frobnicator",
    "": "",
}

published = st.sampled_from(NAMES)
cases = st.sampled_from([str.upper, str.lower, str.title, str.swapcase])


@pytest.mark.parametrize(("name", "base"), NAMES, ids=[name for name, _ in NAMES])
def test_published_name_folds_to_its_base_model(name, base):
    assert base_model(name) == base


def test_table_of_published_names_is_large_and_without_repetition():
    names = [name for name, _ in NAMES]
    assert len(names) >= 250
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_models_never_fold(one, other):
    assert base_model(one) != base_model(other)


@pytest.mark.parametrize("path", PATHS)
def test_paths_and_odd_names(path):
    assert base_model(path) == PATHS[path]


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name):
    assert family(name) == FAMILIES[name]


def test_forms_of_one_model_are_of_one_family():
    for base, names in FORMS.items():
        assert {family(name) for name in names.split()} == {family(base)}


@given(st.text() | st.text(alphabet=string.ascii_lowercase + "0348-_./: qkmbit"))
@example("a:4bit:4bit")
@example("fp-gguf-16")
@example("a/-/\u3000")
def test_any_string_has_a_base_model_which_is_its_own(name):
    base = base_model(name)
    assert base_model(base) == base
    assert family(base) == family(name)


@given(published, cases)
def test_case_means_nothing(entry, case):
    name, base = entry
    assert base_model(case(name)) == base


@given(published, st.data())
def test_separators_are_alike(entry, data):
    name, base = entry
    assume("." not in base)
    changed = "".join(
        data.draw(st.sampled_from("-_ ")) if each in "-_" else each for each in name.split("/")[-1]
    )
    assert base_model(changed) == base


@given(published, st.text(alphabet=string.ascii_letters + string.digits, min_size=1))
def test_owner_means_nothing(entry, owner):
    name, base = entry
    assert base_model(f"{owner}/{name.split('/')[-1]}") == base
    assert base_model(name.split("/")[-1]) == base


@given(published, published)
def test_names_fold_only_within_a_base_model(one, other):
    assert (base_model(one[0]) == base_model(other[0])) == (one[1] == other[1])


SUFFIXES = """
    4bit 8bit 3bit 6bit 4bits 16bit 4-bit bf16 fp16 BF16 F16 MXFP4-Q8 mxfp4 mxfp8 GPTQ GPTQ-Int4
    GPTQ-Int8 AWQ AWQ-INT4 AWQ-4bit FP8 FP8-dynamic FP8-Dynamic FP8-Block NVFP4 nvfp4 FP4 GGUF gguf
    i1-GGUF Q4_K_M Q8_0 Q6_K Q2_K_S Q3_K_XL IQ4_XS IQ2_XXS UD-Q4_K_XL MLX MLX-4bit 4bit-mlx 4bit-DWQ
    DWQ DWQ-lr9e8 4bit-DWQ-lr9e-8 8bit-gs32 4bit-g64 w4a16 W8A8 quantized.w4a16 quantized.w8a8
    bnb-4bit unsloth-bnb-4bit int8 INT4 EXL2 4.0bpw-exl2 EXL3 HQQ ONNX mixed_4_6 mixed-3-6-bit
    qat-q4_0 qat-4bit qat-q4_0-gguf 4bit-128g GPTQ-4bit-128g int4-AutoRound autoround-gguf
    NVFP4A16 GPTQ-Int4-Int8Mix Q4_K_M.gguf FP8-KV nf4 OptiQ-4bit qx86-hi-mlx
"""


@pytest.mark.parametrize("suffix", SUFFIXES.split())
@pytest.mark.parametrize("base", ["Qwen3-8B", "Llama-3.1-8B-Instruct", "Mistral-7B-v0.3", "phi-4"])
def test_suffix_folds_away(base, suffix):
    # `v0.3.4bit` could be any version.
    for joint in "-_." if suffix[0].isalpha() else "-_":
        assert base_model(f"{base}{joint}{suffix}") == base.lower()


KEPT = """
    Base Instruct Thinking it pt Chat Coder Math VL Vision 2507 0324 v0.2 v2 1M 128k REAP-50
    Distill abliterated uncensored speculator.eagle3 EAGLE3 MTP Preview Reasoning Air Flash A3B E2B
    Lite Mini draft 1.5 8B 0.6B 405B hi Q1 medium large
"""


@pytest.mark.parametrize("words", KEPT.split())
@pytest.mark.parametrize("model", ["Qwen3-8B", "Qwen3-8B-Instruct", "gpt-oss"])
def test_word_that_tells_models_apart_is_kept(model, words):
    base = base_model(f"{model}-{words}")
    assert base != base_model(model)
    assert base == base_model(f"mlx-community/{model}-{words}-4bit")
    assert base == base_model(f"{model}-4bit-{words}")


def test_name_of_absurd_length_is_no_work():
    name = "x" + "-fp" * 100_000 + "-16" * 100_000
    assert base_model(name) == name
