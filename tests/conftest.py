"""Fixtures that many tests share."""

import os
import signal
from pathlib import Path

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
