"""How a node is set up: flags first, then `BATON_*` in the environment, then the config file.

Every layer has the same keys, those of `Settings`. The file is TOML:

    models = ["SmolLM2-135M-Instruct"]
    role = "decode"
    memory = "8GiB"
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from node.errors import BatonError
from node.hardware import EngineChoice, RoleChoice
from protocols.chat import PrefillPolicy
from protocols.gossip import InterfaceClass

__all__ = [
    "DEFAULT_API",
    "ConfigError",
    "NodeConfig",
    "Settings",
    "default_data_dir",
    "default_models_dir",
    "load_config",
    "parse_api",
    "parse_size",
]

DEFAULT_API: Final = "127.0.0.1:52415"

LogLevel: TypeAlias = Literal["trace", "debug", "info", "warning", "error"]

_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=63)]
_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Size: TypeAlias = Annotated[int, Meta(ge=0)] | _Text

_ENVIRONMENT: Final = {"models": "BATON_MODEL", "models_dir": "BATON_MODELS"}
"""Variables that are not named `BATON_` and the key: those of the models to load, and of the
directory that they are in.
"""
_LISTS: Final = frozenset({"models", "peers", "interfaces"})
"""Keys whose variables hold comma-separated lists."""

_TABLES: Final = frozenset({"interface_classes"})
"""Keys whose variables hold NAME=VALUE, comma-separated."""

_SIZE: Final = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>[KMGT]?i?B?)", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class ConfigError(BatonError):
    """A key or a value that is wrong; says in which layer."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one layer may say. What it leaves out is for the next one."""

    models: list[_Text] | UnsetType = UNSET
    role: RoleChoice | UnsetType = UNSET
    engine: EngineChoice | UnsetType = UNSET
    api: _Text | UnsetType = UNSET
    """As host:port; IPv6 addresses in brackets."""
    peers: list[_Text] | UnsetType = UNSET
    interfaces: list[_Text] | UnsetType = UNSET
    interface_classes: dict[_Text, InterfaceClass] | UnsetType = UNSET
    """What interfaces are, where their hardware is misjudged. In the environment: NAME=CLASS,..."""
    port: Annotated[int, Meta(ge=0, le=65535)] | UnsetType = UNSET
    cluster: _Name | UnsetType = UNSET
    secret_file: _Text | UnsetType = UNSET
    data_dir: _Text | UnsetType = UNSET
    models_dir: _Text | UnsetType = UNSET
    overlap: bool | UnsetType = UNSET
    remote_prefill: PrefillPolicy | UnsetType = UNSET
    remote_prefill_min_tokens: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    memory: _Size | UnsetType = UNSET
    """Bytes, or a number with a unit: 8GiB, 500MB."""
    log_level: LogLevel | UnsetType = UNSET


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a node is set up."""

    models: tuple[str, ...] = ()
    """To load at the start: names, or paths of checkpoints."""
    role: RoleChoice = "auto"
    engine: EngineChoice = "auto"
    api_host: str = "127.0.0.1"
    api_port: int = 52415
    peers: tuple[str, ...] = ()
    """Multiaddrs to dial beside what discovery finds."""
    interfaces: tuple[str, ...] = ()
    """The only ones to announce, browse, listen and dial on; empty for every usable one."""
    interface_classes: dict[str, InterfaceClass] = {}
    """By name, where the hardware is misjudged."""
    port: int = 0
    """Of libp2p; 0 lets the system choose."""
    cluster: str = "baton"
    secret_file: Path | None = None
    """Holds what every member has to know; None lets anyone on the network join."""
    data_dir: Path
    """Holds the identity, the incarnation and the election term."""
    models_dir: Path
    overlap: bool = True
    """Whether the cache is sent while it is being computed."""
    remote_prefill: PrefillPolicy = "auto"
    """The policy of requests that name none."""
    remote_prefill_min_tokens: int = 256
    """Prompts with fewer uncached tokens are prefilled where they are decoded."""
    memory: int = 0
    """Bytes for an engine's KV cache; 0 leaves it to the engine."""
    log_level: LogLevel = "info"


def load_config(
    flags: Mapping[str, object],
    environment: Mapping[str, str] = os.environ,
    *,
    platform: str = sys.platform,
) -> NodeConfig:
    """Merge the layers.

    Args:
        flags: keys of `Settings` that were given on the command line.
        environment: of the process.
        platform: as `sys.platform`; decides where things are kept.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type or out of range.
    """
    merged: dict[str, object] = {}
    for layer in (
        _read_file(environment),
        _read_environment(environment),
        _check(dict(flags), "the command line"),
    ):
        merged |= {key: value for key, value in _items(layer) if value is not UNSET}
    api_host, api_port = parse_api(str(merged.pop("api", DEFAULT_API)))
    data_dir = merged.pop("data_dir", None) or default_data_dir(environment, platform)
    models_dir = merged.pop("models_dir", None) or default_models_dir(environment)
    return msgspec.convert(
        merged
        | {
            "api_host": api_host,
            "api_port": api_port,
            "data_dir": str(data_dir),
            "models_dir": str(models_dir),
            "memory": parse_size(merged.get("memory", 0)),
        },
        NodeConfig,
        dec_hook=_expand_path,
    )


def default_data_dir(
    environment: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> Path:
    """Return where a node keeps its identity unless it is told otherwise."""
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Baton"
    return _xdg(environment, "XDG_DATA_HOME", ".local/share") / "baton"


def default_models_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where checkpoints are kept unless a flag or the config file says otherwise."""
    given = environment.get(_ENVIRONMENT["models_dir"])
    if given:
        return Path(given).expanduser()
    return _xdg(environment, "XDG_CACHE_HOME", ".cache") / "baton" / "models"


def parse_api(text: str) -> tuple[str, int]:
    """Split host:port, where the host may be an IPv6 address in brackets.

    Raises:
        ConfigError: it is not of that form.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    valid = colon and bare and (bracketed or ":" not in bare) and port.isascii()
    if not (valid and port.isdigit() and int(port) <= 65535):
        raise ConfigError(
            f"{text!r} is no address for the API", f"give it as HOST:PORT, such as {DEFAULT_API}"
        )
    return bare, int(port)


def _read_file(environment: Mapping[str, str]) -> Settings:
    named = environment.get("BATON_CONFIG")
    default = _xdg(environment, "XDG_CONFIG_HOME", ".config") / "baton" / "config.toml"
    path = Path(named).expanduser() if named else default
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise ConfigError(f"BATON_CONFIG names {path}, which does not exist") from None
        return Settings()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return _check(content, str(path))


def _read_environment(environment: Mapping[str, str]) -> Settings:
    given: dict[str, object] = {}
    for key in Settings.__struct_fields__:
        variable = _ENVIRONMENT.get(key, f"BATON_{key.upper()}")
        text = environment.get(variable, "").strip()
        if not text:
            continue
        value = _parse_variable(key, text)
        _check({key: value}, variable, strict=False)
        given[key] = value
    return _check(given, "the environment", strict=False)


def _parse_variable(key: str, text: str) -> object:
    if key not in _LISTS | _TABLES:
        return text
    parts = [part.strip() for part in text.split(",")]
    if key in _LISTS:
        return parts
    return {
        name.strip(): value.strip() for name, _, value in (each.partition("=") for each in parts)
    }


def _check(layer: Mapping[str, object], source: str, *, strict: bool = True) -> Settings:
    try:
        settings = msgspec.convert(layer, Settings, strict=strict)
        if settings.memory is not UNSET:
            parse_size(settings.memory)
        if settings.api is not UNSET:
            parse_api(settings.api)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{source}: {_explain(str(error))}") from error
    return settings


def _explain(detail: str) -> str:
    """Put msgspec's message the way a user of the file would: the key first."""
    detail, _, path = detail.partition(" - at `$.")
    return f"{path.rstrip('`')}: {detail}" if path else detail


def _items(settings: Settings) -> list[tuple[str, object]]:
    return [(key, getattr(settings, key)) for key in Settings.__struct_fields__]


def parse_size(value: object) -> int:
    """Return a size in bytes. K, M, G, T are powers of 1,000, and of 1,024 with an i.

    Raises:
        ConfigError: it is not of that form.
    """
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ConfigError(f"{value!r} is no size", "give bytes, or a number with a unit as in 8GiB")
    unit = match["unit"].upper().removesuffix("B")
    base = 1024 if unit.endswith("I") else 1000
    return int(float(match["number"]) * base ** _POWERS[unit.removesuffix("I")])


def _xdg(environment: Mapping[str, str], variable: str, fallback: str) -> Path:
    # The specification has relative paths ignored.
    given = environment.get(variable, "")
    return Path(given) if given.startswith("/") else Path.home() / fallback


def _expand_path(type_: type, value: object) -> object:
    if type_ is not Path:
        raise NotImplementedError(f"no conversion to {type_}")
    return Path(str(value)).expanduser()
