"""What this machine can run, and what `auto` means on it. Nothing heavy is imported to find out."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from node.errors import NothingToRun
from protocols.engine import EngineName
from protocols.gossip import Accelerator, Role

__all__ = [
    "ABILITIES",
    "DECODE_ORDER",
    "EngineChoice",
    "Hardware",
    "RoleChoice",
    "detect",
    "plan_engines",
]

RoleChoice: TypeAlias = Literal["auto", "prefill", "decode", "both"]
EngineChoice: TypeAlias = Literal["auto", "mlx", "vllm"]


class Hardware(msgspec.Struct, frozen=True):
    """An accelerator, and the engines whose packages are installed."""

    accelerator: Accelerator
    engines: tuple[EngineName, ...]


def detect() -> Hardware:
    """Look at this machine."""
    accelerator: Accelerator = "cpu"
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        accelerator = "apple"
    elif Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists():
        accelerator = "nvidia"
    packages: tuple[tuple[EngineName, tuple[str, ...]], ...] = (
        ("mlx", ("mlx", "mlx_lm")),
        ("vllm", ("vllm",)),
    )
    installed: tuple[EngineName, ...] = tuple(
        name
        for name, modules in packages
        if all(importlib.util.find_spec(module) is not None for module in modules)
    )
    return Hardware(accelerator=accelerator, engines=installed)


def plan_engines(
    role: RoleChoice, engine: EngineChoice, hardware: Hardware
) -> tuple[tuple[EngineName, tuple[Role, ...]], ...]:
    """Decide which engines this node starts, and what each does. Pure.

    Apple silicon decodes with MLX, NVIDIA does everything with vLLM, and a CPU prefills with vLLM
    and decodes with MLX, as far as they are installed. A node for which nothing is installed, and
    that was not asked for anything, runs no engine: it forwards what it is asked to others.

    Raises:
        NothingToRun: what was asked for cannot run here.
    """
    wanted: tuple[Role, ...] = (role,) if role in ("prefill", "decode") else ("prefill", "decode")
    if engine != "auto":
        if engine not in hardware.engines:
            raise NothingToRun(
                f"the engine {engine} is not installed",
                _install(engine, hardware.accelerator)
                or f"use --engine {next(iter(_EXTRAS[hardware.accelerator]))} on this machine",
            )
        able: tuple[Role, ...] = tuple(each for each in wanted if each in ABILITIES[engine])
        if not able:
            runs_vllm = "vllm" in (*hardware.engines, *_EXTRAS[hardware.accelerator])
            raise NothingToRun(
                f"the engine {engine} cannot {role} for others",
                "use --role decode" + (", or --engine vllm" if runs_vllm else ""),
            )
        return ((engine, able),)
    chosen: dict[EngineName, tuple[Role, ...]] = {}
    for each in wanted:
        for name in _PREFERENCES[hardware.accelerator][each]:
            if name in hardware.engines:
                chosen[name] = (*chosen.get(name, ()), each)
                break
    if not chosen and role in ("prefill", "decode"):
        preferred = next(iter(_PREFERENCES[hardware.accelerator][role]), None)
        raise NothingToRun(
            f"no engine that can {role} is installed on this machine",
            (preferred and _install(preferred, hardware.accelerator))
            or "use --role decode: this kind of machine does not prefill for others",
        )
    return tuple((name, roles) for name, roles in chosen.items())


def _install(engine: EngineName, accelerator: Accelerator) -> str | None:
    """Return the remedy that installs an engine; None where Baton has no packages of it."""
    extra = _EXTRAS[accelerator].get(engine)
    return f"install baton[{extra}], see the README" if extra else None


ABILITIES: dict[EngineName, tuple[Role, ...]] = {
    "mlx": ("decode",),
    "vllm": ("prefill", "decode"),
}
"""What an engine can do for a cluster: MLX hands no caches out yet."""

DECODE_ORDER: dict[EngineName, int] = {"mlx": 0, "vllm": 1}
"""Which engine answers, of those that have a model: MLX takes in caches computed elsewhere."""

_PREFERENCES: dict[Accelerator, dict[Role, tuple[EngineName, ...]]] = {
    "apple": {"prefill": (), "decode": ("mlx",)},
    "nvidia": {"prefill": ("vllm",), "decode": ("vllm", "mlx")},
    "cpu": {"prefill": ("vllm",), "decode": ("mlx", "vllm")},
}

_EXTRAS: dict[Accelerator, dict[EngineName, str]] = {
    "apple": {"mlx": "mlx"},
    "nvidia": {"vllm": "vllm"},
    "cpu": {"mlx": "cpu", "vllm": "cpu"},
}
"""The extra of this package with which an engine is installed."""
