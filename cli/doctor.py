"""`baton doctor`: what works on this machine and what does not, with the remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.checks.check import Check
from cli.checks.network import check_network
from cli.checks.software import (
    ENGINE_PROBES,
    check_accelerator,
    check_blas,
    check_engine,
    check_packages,
    check_python,
)
from cli.checks.storage import check_data_dir, check_disk, check_models
from node.config import ConfigError, load_config

__all__ = ["doctor"]

_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class _Report(msgspec.Struct):
    ok: bool
    """No check failed; there may be warnings."""
    checks: list[Check]


@click.command()
@click.option(
    "--interface", "interfaces", multiple=True, metavar="NAME", help="Look at no other; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(as_json: bool, interfaces: tuple[str, ...]) -> None:
    """Say what works on this machine, and the remedy for what does not.

    Takes what `baton up` would take from BATON_* in the environment and from the config file.
    """
    checks: list[Check] = []
    with Console(stderr=True).status("looking at this machine") as status:
        for check in _run_checks(interfaces):
            checks.append(check)
            status.update(f"looked at {check.name}")
    report = _Report(all(check.status != "fail" for check in checks), checks)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        Console().print(_render(report))
    sys.exit(0 if report.ok else 1)


def _run_checks(interfaces: tuple[str, ...]) -> Iterator[Check]:
    yield check_python()
    yield check_packages()
    yield check_accelerator()
    for probe in ENGINE_PROBES:
        yield check_engine(probe)
    blas = check_blas()
    if blas is not None:
        yield blas
    try:
        config = load_config({"interfaces": list(interfaces)} if interfaces else {})
    except ConfigError as error:
        yield Check("configuration", "fail", error.problem, error.remedy)
        return
    yield check_disk(config.models_dir)
    yield check_models(config.models_dir)
    yield check_data_dir(config.data_dir)
    yield from check_network(config)


def _render(report: _Report) -> Table:
    table = Table("", "check", "finding", box=None)
    for check in report.checks:
        finding = Text(check.detail)
        if check.remedy:
            finding.append(f"\n{check.remedy}", style="italic")
        table.add_row(Text(check.status, style=_STYLES[check.status]), Text(check.name), finding)
    return table
