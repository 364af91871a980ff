"""The environment variables that vLLM reads, set before it is imported."""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["prepare"]

_REQUIRED: Final = {
    # The engine runs in the thread that calls `step`, in the process whose connector it is.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Checkpoints are local directories; nothing is asked of a model hub.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # torch.distributed listens even in a world of one: keep it off the network.
    "VLLM_HOST_IP": "127.0.0.1",
}

_DEFAULTS: Final = {
    # OpenMP threads that spin at a barrier keep the one they wait for off its core: with anything
    # else running (the threads that encode chunks, a second engine) that cost a factor of 3 to 5.
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}


def prepare() -> None:
    """Set what the engine depends on, and what keeps vLLM quiet unless the user set it.

    Has no effect on a vLLM that has been imported already where it reads a variable on import.
    """
    os.environ.update(_REQUIRED)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
