"""`baton models` on directories of the test's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.command import Baton


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "elsewhere" / "my-model"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "model.safetensors").write_bytes(b"x" * 1000)
    return directory


@pytest.fixture
def models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "models"
    monkeypatch.setenv("BATON_MODELS", str(directory))
    return directory


def listed(baton: Baton, api: str) -> dict:
    result = baton("models", "list", "--json", "--api", api)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_add_makes_a_link_that_is_listed_and_removed(
    baton: Baton, api: str, checkpoint: Path, models_dir: Path
) -> None:
    added = baton("models", "add", str(checkpoint))
    assert added.exit_code == 0
    assert added.stdout.strip() == str(models_dir / "my-model")
    assert (models_dir / "my-model").is_symlink()
    assert listed(baton, api) == {
        "models_dir": str(models_dir),
        "local": [
            {
                "name": "my-model",
                "path": str(checkpoint),
                "architecture": "llama",
                "bytes": 1000 + len('{"model_type": "llama"}'),
            }
        ],
        "cluster": [
            {
                "id": "org/tiny",
                "x_baton": {"base_model": "org/base", "ready": True, "loaded": True},
            },
            {
                "id": "org/other",
                "x_baton": {"base_model": "org/other", "ready": False, "loaded": True},
            },
            {
                "id": "org/on-disk",
                "x_baton": {"base_model": "org/on-disk", "ready": False, "loaded": False},
            },
        ],
    }
    assert baton("models", "rm", "my-model").exit_code == 0
    assert not os.path.lexists(models_dir / "my-model")
    assert (checkpoint / "config.json").is_file()


def test_copy_under_an_owner(
    baton: Baton, dead_api: str, checkpoint: Path, models_dir: Path
) -> None:
    assert baton("models", "add", str(checkpoint), "--copy", "--name", "org/mine").exit_code == 0
    assert (models_dir / "org/mine/model.safetensors").read_bytes() == b"x" * 1000
    listing = listed(baton, dead_api)
    assert [model["name"] for model in listing["local"]] == ["org/mine"]
    assert listing["cluster"] is None
    assert baton("models", "rm", "org/mine", input="n\n").exit_code == 1
    assert (models_dir / "org/mine").exists()
    assert baton("models", "rm", "org/mine", "--yes").exit_code == 0
    assert not (models_dir / "org/mine").exists()


def test_tables(baton: Baton, api: str, checkpoint: Path, models_dir: Path) -> None:
    baton("models", "add", str(checkpoint))
    result = baton("models", "list", "--api", api)
    assert "my-model" in result.stdout
    assert "not ready" in result.stdout
    assert "on disk" in result.stdout


@pytest.mark.parametrize("name", ["../escape", "a/b/c", ".hidden", "", "/etc"])
def test_bad_names(baton: Baton, checkpoint: Path, models_dir: Path, name: str) -> None:
    assert baton("models", "add", str(checkpoint), f"--name={name}").exit_code == 2
    assert not models_dir.exists()


def test_what_is_no_checkpoint_is_refused(baton: Baton, tmp_path: Path, models_dir: Path) -> None:
    result = baton("models", "add", str(tmp_path))
    assert result.exit_code == 2
    assert "config.json" in result.stderr


def test_existing_name_is_refused(baton: Baton, checkpoint: Path, models_dir: Path) -> None:
    baton("models", "add", str(checkpoint))
    result = baton("models", "add", str(checkpoint))
    assert result.exit_code == 1
    assert "--name" in result.stderr


@pytest.mark.parametrize("name", ["nope", "..", "../elsewhere/my-model"])
def test_only_models_that_are_here_are_removed(
    baton: Baton, checkpoint: Path, models_dir: Path, name: str
) -> None:
    assert baton("models", "rm", name, "--yes").exit_code == 1
    assert (checkpoint / "config.json").is_file()


def test_bundled_model_that_is_there_is_left_alone(baton: Baton, models_dir: Path) -> None:
    present = models_dir / "SmolLM2-135M-Instruct"
    present.mkdir(parents=True)
    (present / "config.json").write_text("{}")
    added = baton("models", "add", "smollm2")
    assert added.exit_code == 0
    assert added.stdout.strip() == str(present)


def test_bundled_model_whose_place_is_taken(baton: Baton, models_dir: Path) -> None:
    (models_dir / "mine").mkdir(parents=True)
    added = baton("models", "add", "smollm2", "--name", "mine")
    assert added.exit_code == 1
    assert added.stdout == ""
    assert "was not imported" in added.stderr
