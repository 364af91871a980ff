import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines.mlx import blas
from engines.mlx.blas import preload_environment

SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from engines.mlx.blas import preload
preload([sys.executable, *sys.orig_argv[1:]])
print(os.getpid(), "libmkl_rt" in open("/proc/self/maps").read())
"""


@pytest.fixture
def linux_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pretend to be on a Linux CPU, without any BLAS; return where MKL would be."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(blas, "_uses_reference_blas", lambda: True)
    monkeypatch.setattr(blas.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    (tmp_path / "lib").mkdir()
    return tmp_path / "lib" / "libmkl_rt.so.3"


def test_mkl_is_first_choice(linux_cpu: Path, monkeypatch: pytest.MonkeyPatch):
    linux_cpu.write_bytes(b"")
    monkeypatch.setenv("LD_PRELOAD", "/mine.so")
    environment = preload_environment()
    assert environment["LD_PRELOAD"] == f"{linux_cpu}:/mine.so"
    assert environment["MKL_INTERFACE_LAYER"] == "LP64"
    assert environment["MKL_NUM_THREADS"] == "3"


def test_one_core_means_one_thread(linux_cpu: Path, monkeypatch: pytest.MonkeyPatch):
    linux_cpu.write_bytes(b"")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert preload_environment()["MKL_NUM_THREADS"] == "1"


def test_openblas_is_second_choice(linux_cpu: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blas.ctypes.util, "find_library", lambda name: f"lib{name}.so.0")
    assert preload_environment()["LD_PRELOAD"] == "libopenblas.so.0"


def test_none_found(linux_cpu: Path):
    assert preload_environment() == {}


def test_no_other_machine_needs_one(linux_cpu: Path, monkeypatch: pytest.MonkeyPatch):
    linux_cpu.write_bytes(b"")
    monkeypatch.setattr(blas, "_uses_reference_blas", lambda: False)
    assert preload_environment() == {}
    monkeypatch.setattr(blas, "_uses_reference_blas", lambda: True)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert preload_environment() == {}


@pytest.mark.skipif(not preload_environment(), reason="no BLAS to preload here")
def test_the_process_starts_again_once_with_the_library():
    root = str(Path(__file__).parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, root], stdout=subprocess.PIPE, text=True
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.split() == [str(process.pid), "True"]
