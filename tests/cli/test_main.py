"""The group, and what `baton up` makes of its flags before a node is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from node.config import NodeConfig
from node.errors import PortInUse
from tests.support.command import Baton


def test_help_names_every_command(baton: Baton) -> None:
    result = baton("--help")
    assert result.exit_code == 0
    for command in ("bench", "chat", "demo", "doctor", "models", "status", "up"):
        assert f"\n  {command} " in result.stdout
        assert baton(command, "--help").exit_code == 0


def test_version(baton: Baton) -> None:
    assert baton("--version").stdout.startswith("baton, version ")


@pytest.mark.parametrize("arguments", [("fly",), ("up", "--fly"), ("chat",)])
def test_wrong_usage(baton: Baton, arguments: tuple[str, ...]) -> None:
    assert baton(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--api", "52415"), "HOST:PORT"),
        (("--memory", "lots"), "no size"),
        (("--role", "boss"), "boss"),
        (("--port", "70000"), "70000"),
        (("--cluster", ""), "cluster"),
    ],
)
def test_wrong_values_of_up(baton: Baton, arguments: tuple[str, ...], complaint: str) -> None:
    result = baton("up", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NodeConfig]:
    """Collects the configurations of nodes, none of which is started."""
    configs: list[NodeConfig] = []
    app = ModuleType("node.app")

    def run(config: NodeConfig, on_loading: object) -> None:
        configs.append(config)
        if config.cluster == "broken":
            raise PortInUse("port 1 is taken", "choose another")

    monkeypatch.setattr(app, "run", run, raising=False)
    monkeypatch.setitem(sys.modules, "node.app", app)
    return configs


def test_flags_of_up_reach_the_node(baton: Baton, started: list[NodeConfig]) -> None:
    words = "up --model a --model b --role decode --engine mlx --api [::1]:9 --peer p --port 7"
    words += " --interface lo --cluster c --data-dir /d --models-dir /m --no-overlap --memory 1K"
    words += " --remote-prefill remote --remote-prefill-min-tokens 0 --log-level debug"
    assert baton(*words.split()).exit_code == 0
    assert started == [
        NodeConfig(
            models=("a", "b"),
            role="decode",
            engine="mlx",
            api_host="::1",
            api_port=9,
            peers=("p",),
            interfaces=("lo",),
            port=7,
            cluster="c",
            data_dir=Path("/d"),
            models_dir=Path("/m"),
            overlap=False,
            remote_prefill="remote",
            remote_prefill_min_tokens=0,
            memory=1000,
            log_level="debug",
        )
    ]


def test_up_without_flags_leaves_it_to_the_other_layers(
    baton: Baton, started: list[NodeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_OVERLAP", "false")
    monkeypatch.setenv("BATON_PORT", "8")
    assert baton("up", "--port", "9").exit_code == 0
    assert (started[0].overlap, started[0].port) == (False, 9)


def test_node_that_cannot_run_says_why(baton: Baton, started: list[NodeConfig]) -> None:
    broken = baton("up", "--cluster", "broken")
    assert broken.exit_code == 1
    assert "port 1 is taken: choose another" in broken.stderr


def test_wrong_config_file(baton: Baton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("rol = 1\n")
    monkeypatch.setenv("BATON_CONFIG", str(tmp_path / "config.toml"))
    result = baton("up")
    assert result.exit_code == 2
    assert "`rol`" in result.stderr


def test_command_line_imports_no_tensor_library() -> None:
    program = (
        "import sys, cli.main, cli.up, cli.status, cli.chat, cli.models, cli.doctor\n"
        "heavy = {'torch', 'mlx', 'vllm', 'transformers', 'libp2p'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
