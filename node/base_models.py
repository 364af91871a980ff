"""Which checkpoints are one model in other forms, told from their published names.

A name folds to its base model by dropping what says how the weights are stored (quantization, file
format, data type) and who published them. Everything else stays in it: a word that is not known
here, a size, a date, a context length, `Base`, `Instruct`. Two names that ought to fold and do not
cost speed; two that fold and ought not would hand the cache of one model to another.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["base_model", "family"]

_FORMS: Final = (
    # llama.cpp: q4-k-m, iq2-xxs, q4-0-4-8; ik_llama.cpp's types, and Unsloth's (ud).
    r"(?:smol-|ud-)?[it]?q[1-8]-?(?:[01](?:-[48]-[48])?|k(?:-?(?:x?xs|s|m|x?l|p))?"
    r"|x?xs|s|m|x?l|nl|kss?|kt)(?:-r[48])?",
    r"gg(?:uf|ml)",
    r"imat(?:rix)?",
    r"i1(?=-(?:gguf|i?q[1-8]))",
    r"[0-9]{5}-of-[0-9]{5}$",
    # MLX: 4bit, 4bit-dwq-lr9e-8, mixed-4-6, dq3-k-m, 8bit-gs32, mxfp4-q8.
    r"(?:ud-)?mlx",
    r"(?:[1-8]|[2-8]\.[0-9]+)-?bits?",
    r"q[3-8]",
    r"dwq[0-9]?(?:-(?:v[0-9]|[0-9]{6}|[0-9]{8}))?(?:-lr[0-9.]+e-?[0-9]+)?",
    r"mixed-[0-9](?:-[0-9]){1,2}(?:-?bit)?",
    r"[do]q[1-8](?:\.[0-9])?(?:e|plus)?(?:-k(?:-[sml])?)?",
    r"vq-[0-9]+(?:\.[0-9]+)?bpw",
    r"qx[0-9]{2}[a-z]?(?:-hi)?",
    r"optiq",
    r"gs?(?:32|64|128)",
    # GPTQ, AWQ, AutoRound, compressed-tensors, OpenVINO: gptq-int4-int8mix, quantized-w4a16.
    r"gptq(?:model|-marlin|-v2)?",
    r"(?<=bit-)(?:32|64|128)g",
    r"awq(?:-marlin|-gemm|-gemv)?",
    r"auto-?round",
    r"w[2-8]a(?:4|8|16|fp8)(?:-dynamic)?",
    r"u?int[2-8](?:mix|wo)?(?:-(?:a?sym|mixed|inc|cw|ov))*",
    r"8da4w",
    r"(?:un)?quantized",
    r"qa[td]",
    # bitsandbytes, ExLlama, HQQ, ONNX: unsloth-bnb-4bit, 5.0bpw-h6-exl2.
    r"(?:unsloth-)?bnb",
    r"nf4",
    r"exl[23]",
    r"[0-9]+(?:\.[0-9]+)?-?bpw(?:-h[0-9])?",
    r"hqq",
    r"onnx",
    # Floating point: fp8-dynamic, nvfp4a16, bf16.
    r"(?:fp8|float8(?:dq)?)(?:-(?:dynamic|block|static|kv|e4m3))*",
    r"(?:nv)?fp4(?:a16)?",
    r"mxfp[468](?:-moe)?",
    r"(?:fp|bf|f|float|bfloat)-?(?:16|32)(?:mix)?",
    r"(?:16|32)-?bits?",
    # Converted to the layout of Hugging Face's library; always the last word.
    r"hf$",
)
"""Patterns of whole words, in lower case and joined by `-`, that say how weights are stored."""

_FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "qwen": ("qwen", "codeqwen", "qwq", "qvq"),
    "llama": ("llama", "codellama", "tinyllama"),
    "mistral": (
        *("mistral", "mixtral", "ministral", "devstral", "magistral", "codestral"),
        *("mathstral", "pixtral", "voxtral"),
    ),
    "gemma": ("gemma", "codegemma", "medgemma", "paligemma", "shieldgemma", "functiongemma"),
    "phi": ("phi",),
    "deepseek": ("deepseek",),
    "gpt-oss": ("gpt-oss",),
    "glm": ("glm", "chatglm"),
    "kimi": ("kimi",),
    "minimax": ("minimax",),
    "granite": ("granite",),
    "smollm": ("smollm",),
    "nemotron": ("nemotron",),
    "falcon": ("falcon",),
    "lfm": ("lfm",),
    "olmo": ("olmo", "olmoe"),
    "command": ("c4ai-command", "command-a", "command-r"),
    "aya": ("aya",),
    "exaone": ("exaone",),
    "ernie": ("ernie",),
    "hunyuan": ("hunyuan",),
    "seed-oss": ("seed-oss",),
    "internlm": ("internlm",),
    "hermes": ("hermes",),
    "yi": ("yi",),
    "solar": ("solar",),
    "mimo": ("mimo",),
    "starcoder": ("starcoder",),
}

_PUBLISHERS: Final = (
    *("meta-llama", "meta", "qwen", "google", "mistralai", "microsoft", "deepseek-ai", "openai"),
    *("zai-org", "thudm", "moonshotai", "minimaxai", "ibm-granite", "huggingfacetb", "nvidia"),
    *("tiiuae", "liquidai", "allenai", "cohereforai", "coherelabs", "lgai-exaone", "baidu"),
    *("tencent", "bytedance-seed", "nousresearch", "01-ai", "upstage", "xiaomimimo", "bigcode"),
    *("mlx-community", "lmstudio-community", "unsloth", "bartowski", "redhatai", "neuralmagic"),
    *("thebloke", "quanttrio", "cyankiwi", "quantized", "mlx"),
)
"""Who stands before the name in `meta-llama_Llama-3.1-8B-Instruct-GGUF`, `Meta-Llama-3-8B`,
`NVIDIA-Nemotron-3-Nano-30B-A3B`: dropped before the name of a family, as an owner is."""

_MAX_LENGTH: Final = 512
_UNTELLING: Final = frozenset(
    {"model", "models", "checkpoint", "ggml-model", "unsloth", "main", "snapshots", "weights"}
)
"""Names of files and directories that say nothing of what is inside."""

# The first word of a name is never its form.
_FORM: Final = re.compile(rf"(?<=.)-(?:{'|'.join(_FORMS)})(?=-|$)")
_HEADS: Final = {head: name for name, heads in _FAMILIES.items() for head in heads}
_HEAD: Final = rf"(?:{'|'.join(sorted(_HEADS, key=len, reverse=True))})"
# `phi` begins phi-4 and phi3, never philosopher.
_FAMILY: Final = re.compile(rf"(?:^|-)({_HEAD})(?=[-0-9:]|v[0-9]|$)")
_PUBLISHER: Final = re.compile(rf"^(?:(?:{'|'.join(_PUBLISHERS)})-)+(?={_HEAD}(?:[-0-9:]|$))")
# A dot between digits belongs to a number: `Qwen3.5`, `v0.2`.
_SEPARATORS: Final = re.compile(r"(?:[\s_-]|\.(?![0-9])|(?<![0-9])\.)+")


@lru_cache(maxsize=1024)
def base_model(name: str) -> str:
    """Return the key that all forms of a model share, such as `qwen3-8b`.

    It is its own base model. Any string has one; that of an absurdly long name is the name.

    Args:
        name: `OWNER/NAME`, a bare name, or the path of a directory or of a GGUF file.
    """
    return _fold(_telling_part(name)) if len(name) <= _MAX_LENGTH else name


def family(name: str) -> str:
    """Return the line of models that a name belongs to, such as `qwen`.

    Of a fine-tune that names several it is the first; of an unknown model its first word.
    """
    base = base_model(name)
    found = _FAMILY.search(base)
    if found is not None:
        return _HEADS[found[1]]
    return re.split(r"[-0-9:]", base, maxsplit=1)[0] or base


def _telling_part(path: str) -> str:
    """Return the last part of a path that says which model it is."""
    parts = [part for part in re.split(r"[/\\]", path) if _normalise(part)]
    # The hub allows no `--` in a name: caches write it for `/`, as in
    # models--Qwen--Qwen3-8B/snapshots/<commit>.
    cached = next((part for part in parts if part.startswith("models--")), None)
    if cached is not None:
        parts = [cached.removeprefix("models--")]
    parts[-1:] = [part for end in parts[-1:] for part in end.split("--") if _normalise(part)]
    if not parts:
        return path
    return next((part for part in reversed(parts) if _tells_the_model(part)), parts[-1])


def _tells_the_model(part: str) -> bool:
    # A first word is never dropped, so this one takes the place of the model's.
    rest = _fold(f"x-{part}").removeprefix("x").removeprefix("-")
    return bool(rest) and rest not in _UNTELLING


def _normalise(name: str) -> str:
    """Return the words of a name in lower case, joined by `-`."""
    return _SEPARATORS.sub("-", name.casefold()).strip("-")


def _fold(name: str) -> str:
    words = _normalise(name)
    while True:
        # `:Q4_K_M` picks a file; any other tag, as in `qwen3:8b`, follows rules of its own.
        stem, colon, tag = words.rpartition(":")
        if colon and _FORM.sub("", f"x-{tag}") == "x":
            words = f"{stem}-{tag}"
        folded = _PUBLISHER.sub("", _FORM.sub("", words))
        if folded == words:
            return folded
        words = folded
