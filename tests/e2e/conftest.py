"""Two real nodes, a prefill node with vLLM and a decode node with MLX, kept for many tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.nodes import LocalNode, start_pair

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="package")
def pair(smollm2_path: Path) -> Iterator[tuple[LocalNode, LocalNode]]:
    """The prefill node and the decode node; tests leave them as they found them."""
    with start_pair(smollm2_path.name, f"test-{secrets.token_hex(3)}") as nodes:
        yield nodes


@pytest.fixture
def own_pair(smollm2_path: Path) -> Iterator[tuple[LocalNode, LocalNode]]:
    """A pair for one test, which may break it."""
    with start_pair(smollm2_path.name, f"test-{secrets.token_hex(3)}") as nodes:
        yield nodes


@pytest.fixture
def tell(
    capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    """Tells what was measured: on the terminal, and in the report of the run."""

    def tell(text: str) -> None:
        record_property("measured", text)
        with capsys.disabled():
            print(f"\n{text}")  # noqa: T201

    return tell
