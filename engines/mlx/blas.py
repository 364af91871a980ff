"""Finds a faster BLAS for MLX on a Linux CPU, and starts the engine process again with it.

The mlx-cpu wheel links netlib's reference BLAS. Its symbols can be taken over by a library that is
preloaded: Intel's MKL made prefill of a 135M model 20 to 30 times faster on two cores (7 to between
140 and 230 tokens/s), and decode about twice. A preload only counts from the start of a process,
hence the restart.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loguru import logger

__all__ = ["preload", "preload_environment"]

_MKL: Final = "libmkl_rt.so.3"

_MKL_SETTINGS: Final = {
    # MLX calls the 32-bit integer interface.
    "MKL_INTERFACE_LAYER": "LP64",
    # With GNU's OpenMP it was 4 times slower, sequential 1.5 times.
    "MKL_THREADING_LAYER": "INTEL",
    # Milliseconds that idle threads spin; the default of 200 takes cores from other processes.
    "KMP_BLOCKTIME": "1",
}

_THREADS: Final = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_RESTARTED: Final = "BATON_BLAS_PRELOADED"
"""Holds the process id of the process that was restarted, so that its children do not count."""


def preload_environment() -> dict[str, str]:
    """Return the environment variables that give MLX a faster BLAS; empty where none is needed.

    Logs what to install where one is needed and none is found.
    """
    if sys.platform != "linux" or not _uses_reference_blas():
        return {}
    # A core is left to others. Threads wait for one another at the end of each multiplication:
    # where one has no core to run on, decoding was 5 times slower than with a thread less.
    threads = dict.fromkeys(_THREADS, str(max(1, len(os.sched_getaffinity(0)) - 1)))
    mkl = Path(sys.prefix) / "lib" / _MKL
    if mkl.is_file():
        return {"LD_PRELOAD": _prepended(str(mkl)), **_MKL_SETTINGS, **threads}
    openblas = ctypes.util.find_library("openblas")
    if openblas is not None:
        return {"LD_PRELOAD": _prepended(openblas), **threads}
    remedy = "pip install --no-deps mkl" if platform.machine() == "x86_64" else "install OpenBLAS"
    logger.warning(
        "MLX runs on the reference BLAS, 6 to 30 times slower than it could be: {}", remedy
    )
    return {}


def preload(argv: Sequence[str]) -> None:
    """Replace this process by `argv` with the faster BLAS preloaded, once, if there is one.

    To be called at the very start: nothing of this process but its id and its inheritable file
    descriptors survives. Returns if there is nothing to preload, or it has been done.

    Raises:
        OSError: `argv[0]` cannot be executed.
    """
    if os.environ.get(_RESTARTED) == str(os.getpid()):
        return
    variables = preload_environment()
    if not variables:
        return
    # What the user has set goes before our defaults, but for the preload, which includes theirs.
    environment = {**variables, **os.environ, "LD_PRELOAD": variables["LD_PRELOAD"]}
    environment[_RESTARTED] = str(os.getpid())
    os.execve(argv[0], list(argv), environment)


def _uses_reference_blas() -> bool:
    try:
        importlib.metadata.version("mlx-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _prepended(library: str) -> str:
    given = os.environ.get("LD_PRELOAD")
    return f"{library}:{given}" if given else library
