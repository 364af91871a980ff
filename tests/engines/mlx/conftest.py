"""A tiny random model in the MLX engine, and in transformers to compare with."""

from pathlib import Path

import pytest

from engines.mlx.engine import MlxEngine, create
from protocols.engine import Capabilities, Load
from tests.support.engines import MemoryOutbox, MemorySink
from tests.support.reference import Reference, write_tiny_llama


class Loaded:
    """An engine with a model, and everything it says."""

    def __init__(self, path: Path) -> None:
        self.outbox = MemoryOutbox()
        self.engine: MlxEngine = create(self.outbox, MemorySink(self.outbox))
        self.stages: list[str] = []
        self.capabilities: Capabilities = self.engine.load(
            Load(model="model", path=str(path)), lambda stage, _: self.stages.append(stage)
        )


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama", smollm2_path)


@pytest.fixture(scope="session")
def tiny_reference(tiny_path: Path) -> Reference:
    return Reference(tiny_path)


@pytest.fixture(scope="session")
def tiny_loaded(tiny_path: Path) -> Loaded:
    return Loaded(tiny_path)


@pytest.fixture
def tiny(tiny_loaded: Loaded) -> Loaded:
    """The tiny model, loaded once; what it said before is forgotten."""
    tiny_loaded.outbox.messages.clear()
    return tiny_loaded


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Loaded:
    return Loaded(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_path: Path) -> Reference:
    return Reference(smollm2_path)
