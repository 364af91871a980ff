"""Fixtures that many tests share."""

import os
from pathlib import Path

import pytest

from engines.checkpoints import import_smollm2


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct in bfloat16; made once and kept for later runs."""
    models = Path(os.environ.get("BATON_MODELS") or Path.home() / ".cache" / "baton" / "models")
    return import_smollm2(models / "SmolLM2-135M-Instruct")
