"""Fixtures that many tests share."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from engines.checkpoints import import_smollm2

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As for what a shell runs in the background; commands that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct in bfloat16; made once and kept for later runs."""
    models = Path(os.environ.get("BATON_MODELS") or Path.home() / ".cache" / "baton" / "models")
    return import_smollm2(models / "SmolLM2-135M-Instruct")


@pytest.fixture(autouse=True)
def every_child_is_waited_for() -> Iterator[None]:
    """Fail the test that leaves a process behind which has ended and was never waited for."""
    yield
    with suppress(ChildProcessError):  # Of one that has no children at all.
        left = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if left is not None:
            name = psutil.Process(left.si_pid).name()
            os.waitpid(left.si_pid, 0)
            pytest.fail(f"process {left.si_pid} ({name}) ended and was not waited for")
