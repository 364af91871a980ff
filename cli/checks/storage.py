"""The disk, the data directory, and the models."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

from cli.checks.check import Check
from node.models import BUNDLED_MODEL, ModelStore

__all__ = ["check_data_dir", "check_disk", "check_models"]

_LOW_BYTES: Final = 5 * 10**9
_LOCK_FILE: Final = "lock"
"""As `node.identity` names it."""


def check_disk(models_dir: Path) -> Check:
    """Check that there is room for a model where they are kept."""
    free = shutil.disk_usage(_nearest_existing(models_dir)).free
    detail = f"{free / 1e9:.1f} GB free for {models_dir}"
    if free >= _LOW_BYTES:
        return Check("disk", "ok", detail)
    return Check("disk", "warn", detail, "make room, or keep models elsewhere with --models-dir")


def check_data_dir(data_dir: Path) -> Check:
    """Check that the data directory can be used, and whether a node uses it now."""
    existing = _nearest_existing(data_dir)
    if not existing.is_dir() or not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        return Check(
            "data directory",
            "fail",
            f"{existing} is not writable",
            "change its permissions, or choose another with --data-dir",
        )
    if existing != data_dir:
        return Check("data directory", "ok", f"{data_dir}, made at the first start")
    state = "used by a running node" if _is_locked(data_dir / _LOCK_FILE) else "free"
    return Check("data directory", "ok", f"{data_dir}, {state}")


def check_models(models_dir: Path) -> Check:
    """Say which models are here."""
    names = ModelStore(models_dir).names()
    if names:
        return Check("models", "ok", f"{len(names)} in {models_dir}: {', '.join(names)}")
    return Check(
        "models",
        "warn",
        f"none in {models_dir}",
        f"`baton models add smollm2` makes {BUNDLED_MODEL}, `baton models add DIRECTORY` adds one",
    )


def _nearest_existing(path: Path) -> Path:
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
