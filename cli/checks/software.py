"""Python, packages, engines, the accelerator, and the BLAS that MLX uses on a CPU."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from cli.checks.check import Check
from node.hardware import detect

__all__ = [
    "ENGINE_PROBES",
    "EngineProbe",
    "check_accelerator",
    "check_blas",
    "check_engine",
    "check_packages",
    "check_python",
]

_OLDEST_PYTHON: Final = (3, 11)
_NVIDIA_SMI_TIMEOUT_S: Final = 15.0


class EngineProbe(msgspec.Struct, frozen=True):
    """How to find out whether an engine's library really imports."""

    name: str
    modules: tuple[str, ...]
    program: str
    """Imports the library and prints what there is to say, in another process."""
    timeout_s: float
    remedy: str


ENGINE_PROBES: Final = (
    EngineProbe(
        name="mlx",
        modules=("mlx", "mlx_lm"),
        program=(
            "import mlx.core, mlx_lm, importlib.metadata\n"
            "print('mlx-lm', importlib.metadata.version('mlx-lm'), 'on', mlx.core.default_device())"
        ),
        timeout_s=90,
        remedy="install baton[mlx] on Apple silicon, or baton[cpu]",
    ),
    EngineProbe(
        name="vllm",
        modules=("vllm",),
        program=(
            "import vllm, vllm.platforms\n"
            "from vllm.v1.engine.llm_engine import LLMEngine\n"
            "print('vLLM', vllm.__version__, 'on', vllm.platforms.current_platform.device_type)"
        ),
        timeout_s=180,
        remedy="install baton[vllm] for NVIDIA, or baton[cpu]",
    ),
)


def check_python() -> Check:
    """Check the version of the interpreter."""
    detail = f"{platform.python_version()} in {sys.prefix}"
    if sys.version_info >= _OLDEST_PYTHON:
        return Check("python", "ok", detail)
    return Check("python", "fail", detail, "use Python 3.11 or later")


def check_packages(distribution: str = "baton") -> Check:
    """Check that every package that `distribution` needs is installed, extras aside."""
    required = importlib.metadata.requires(distribution) or []
    names = [
        match[0]
        for line in required
        if "extra ==" not in line and (match := re.match(r"[A-Za-z0-9._-]+", line))
    ]
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        remedy = f"pip install {' '.join(missing)}"
        return Check("packages", "fail", f"missing: {', '.join(missing)}", remedy)
    return Check("packages", "ok", f"all {len(names)} are installed")


def check_engine(probe: EngineProbe) -> Check:
    """Import an engine's library in a process of its own, as the engine process will."""
    if any(importlib.util.find_spec(module) is None for module in probe.modules):
        return Check(probe.name, "warn", "not installed", probe.remedy)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", probe.program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=probe.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"importing it took longer than {probe.timeout_s:.0f} s"
        return Check(probe.name, "fail", detail, "see what keeps this machine's disk or CPU busy")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        detail = lines[-1] if lines else f"importing it ended with status {done.returncode}"
        return Check(probe.name, "fail", detail, f"repair the installation: {probe.remedy}")
    lines = done.stdout.strip().splitlines()
    return Check(probe.name, "ok", lines[-1] if lines else "imports")


def check_accelerator() -> Check:
    """Say what this machine computes on."""
    accelerator = detect().accelerator
    if accelerator == "apple":
        return Check("accelerator", "ok", f"Apple silicon, {platform.processor()}")
    if accelerator == "cpu":
        return Check("accelerator", "ok", f"none, the CPU computes ({platform.machine()})")
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check(
            "accelerator",
            "fail",
            f"there is an NVIDIA device, but nvidia-smi fails ({error})",
            "install the NVIDIA driver, or restart after an update of it",
        )
    return Check("accelerator", "ok", "; ".join(done.stdout.strip().splitlines()))


def check_blas() -> Check | None:
    """Say which BLAS MLX gets where it runs on a Linux CPU; None where it does not."""
    if sys.platform != "linux" or not _is_installed("mlx-cpu"):
        return None
    mkl = Path(sys.prefix) / "lib" / "libmkl_rt.so.3"
    if mkl.is_file():
        return Check("blas", "ok", "MKL, preloaded for MLX")
    openblas = ctypes.util.find_library("openblas")
    if openblas is not None:
        return Check("blas", "ok", f"{openblas}, preloaded for MLX")
    intel = platform.machine() == "x86_64"
    remedy = "pip install --no-deps mkl" if intel else "install OpenBLAS"
    return Check("blas", "warn", "MLX has the reference BLAS, which is many times slower", remedy)


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
