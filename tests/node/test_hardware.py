"""What each kind of machine runs, and what it is told to install for what it cannot."""

from __future__ import annotations

import pytest

from node.errors import NothingToRun
from node.hardware import EngineChoice, Hardware, RoleChoice, plan_engines
from protocols.engine import EngineName
from protocols.gossip import Accelerator

BOTH: tuple[EngineName, ...] = ("mlx", "vllm")


@pytest.mark.parametrize(
    ("accelerator", "engines", "plan"),
    [
        ("apple", ("mlx",), (("mlx", ("decode",)),)),
        ("nvidia", ("vllm",), (("vllm", ("prefill", "decode")),)),
        ("cpu", BOTH, (("vllm", ("prefill",)), ("mlx", ("decode",)))),
        ("cpu", ("mlx",), (("mlx", ("decode",)),)),
        ("cpu", ("vllm",), (("vllm", ("prefill", "decode")),)),
        ("cpu", (), ()),
    ],
)
def test_automatic_plan(
    accelerator: Accelerator, engines: tuple[EngineName, ...], plan: object
) -> None:
    assert plan_engines("auto", "auto", Hardware(accelerator, engines)) == plan


@pytest.mark.parametrize(
    ("role", "engine", "accelerator", "remedy"),
    [
        ("decode", "auto", "apple", "install baton[mlx]"),
        ("prefill", "auto", "apple", "use --role decode"),
        ("decode", "auto", "nvidia", "install baton[vllm]"),
        ("prefill", "auto", "nvidia", "install baton[vllm]"),
        ("decode", "auto", "cpu", "install baton[cpu]"),
        ("prefill", "auto", "cpu", "install baton[cpu]"),
        ("auto", "mlx", "apple", "install baton[mlx]"),
        ("auto", "vllm", "apple", "use --engine mlx"),
        ("auto", "mlx", "nvidia", "use --engine vllm"),
        ("auto", "vllm", "nvidia", "install baton[vllm]"),
        ("auto", "mlx", "cpu", "install baton[cpu]"),
        ("auto", "vllm", "cpu", "install baton[cpu]"),
    ],
)
def test_what_is_missing_is_named_as_this_machine_installs_it(
    role: RoleChoice, engine: EngineChoice, accelerator: Accelerator, remedy: str
) -> None:
    with pytest.raises(NothingToRun) as refused:
        plan_engines(role, engine, Hardware(accelerator, ()))
    assert refused.value.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("accelerator", "remedy"),
    [("apple", "use --role decode"), ("cpu", "use --role decode, or --engine vllm")],
)
def test_mlx_does_not_prefill_for_others(accelerator: Accelerator, remedy: str) -> None:
    with pytest.raises(NothingToRun) as refused:
        plan_engines("prefill", "mlx", Hardware(accelerator, ("mlx",)))
    assert refused.value.remedy == remedy
