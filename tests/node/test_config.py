"""Layers of configuration, and what is wrong with wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config import ConfigError, NodeConfig, load_config, parse_api


def write(tmp_path: Path, text: str) -> dict[str, str]:
    """Write a config file and return an environment that names it."""
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return {"BATON_CONFIG": str(path)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_defaults(home: Path) -> None:
    config = load_config({}, {}, platform="linux")
    assert config == NodeConfig(
        data_dir=home / ".local/share/baton", models_dir=home / ".cache/baton/models"
    )
    assert (config.api_host, config.api_port, config.cluster) == ("127.0.0.1", 52415, "baton")
    assert config.remote_prefill_min_tokens == 256


def test_directories_of_other_platforms_and_xdg(home: Path) -> None:
    mac = load_config({}, {}, platform="darwin")
    assert mac.data_dir == home / "Library/Application Support/Baton"
    xdg = {"XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "relative"}
    config = load_config({}, xdg, platform="linux")
    assert (config.data_dir, config.models_dir) == (
        Path("/d/baton"),
        home / ".cache/baton/models",
    )


def test_flags_before_environment_before_file(tmp_path: Path) -> None:
    environment = write(tmp_path, 'role = "decode"\nport = 1\ncluster = "file"\n')
    environment |= {"BATON_PORT": "2", "BATON_CLUSTER": "environment"}
    config = load_config({"cluster": "flag"}, environment)
    assert (config.role, config.port, config.cluster) == ("decode", 2, "flag")


def test_file_in_its_usual_place_is_read(home: Path) -> None:
    path = home / ".config/baton/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("overlap = false\n")
    assert load_config({}, {}).overlap is False


def test_everything_from_the_environment() -> None:
    config = load_config(
        {},
        {
            "BATON_MODEL": "a, b",
            "BATON_MODELS": "~/models",
            "BATON_PEERS": "/ip4/192.0.2.1/tcp/1",
            "BATON_INTERFACES": "lo",
            "BATON_API": "[::1]:80",
            "BATON_OVERLAP": "false",
            "BATON_MEMORY": "1.5 GiB",
            "BATON_REMOTE_PREFILL": "local",
            "BATON_REMOTE_PREFILL_MIN_TOKENS": "9",
            "BATON_LOG_LEVEL": "debug",
            "BATON_SECRET_FILE": "~/secret",
            "BATON_ROLE": "",
        },
    )
    assert config.models == ("a", "b")
    assert config.models_dir == Path.home() / "models"
    assert config.peers == ("/ip4/192.0.2.1/tcp/1",)
    assert config.interfaces == ("lo",)
    assert (config.api_host, config.api_port) == ("::1", 80)
    assert config.overlap is False
    assert config.memory == 3 << 29
    assert (config.remote_prefill, config.remote_prefill_min_tokens) == ("local", 9)
    assert (config.log_level, config.role) == ("debug", "auto")
    assert config.secret_file == Path.home() / "secret"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('rol = "decode"', "unknown field `rol`"),
        ('role = "boss"', "role: .*'boss'"),
        ("port = 70000", "port: "),
        ('port = "1"', "port: "),
        ("models = [1]", r"models\[0\]: "),
        ('models = "one"', "models: "),
        ('cluster = ""', "cluster: "),
        ('secret_file = ""', "secret_file: "),
        ("secret_file = 1", "secret_file: "),
        ("overlap = 1", "overlap: "),
        ('memory = "lots"', "'lots' is no size"),
        ("memory = -1", "memory: "),
        ('api = "52415"', "'52415' is no address"),
        ("api = ", "cannot be read"),
    ],
)
def test_wrong_file_is_explained(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"config\.toml.*{complaint}"):
        load_config({}, write(tmp_path, text))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BATON_PORT", "many"),
        ("BATON_ENGINE", "gguf"),
        ("BATON_OVERLAP", "maybe"),
        ("BATON_API", "localhost"),
        ("BATON_MODEL", "a,,b"),
    ],
)
def test_wrong_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        load_config({}, {variable: value})


def test_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_config({}, {"BATON_CONFIG": str(tmp_path / "none.toml")})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("12", 12),
        ("8GiB", 8 << 30),
        ("8gb", 8_000_000_000),
        ("1.5K", 1500),
        ("2 M", 2_000_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert load_config({"memory": text}, {}).memory == size


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:x", "::1:80", "a:65536", "a:-1", "a:٣"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_api(text)


def test_interfaces_that_are_misjudged_are_named_in_file_and_environment(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('interface_classes = {en7 = "thunderbolt"}\n')
    from_file = load_config({}, {"BATON_CONFIG": str(file)})
    assert from_file.interface_classes == {"en7": "thunderbolt"}
    given = {"BATON_INTERFACE_CLASSES": "en7=thunderbolt, en0 = wifi"}
    assert load_config({}, given).interface_classes == {"en7": "thunderbolt", "en0": "wifi"}
    for wrong in ("en7", "en7=fast", "=wifi"):
        with pytest.raises(ConfigError, match="INTERFACE_CLASSES"):
            load_config({}, {"BATON_INTERFACE_CLASSES": wrong})
