"""`docs/performance.md` says what the code says."""

import re
from pathlib import Path

import pytest

from bench.kv.transfer import CASES
from bench.paper import MEASURED, work_out
from cli.bench import bench

TEXT = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"\n#+ ", TEXT)}


def rows(section: str) -> dict[str, list[str]]:
    """Return the cells of a section's first table by the first one."""
    lines = iter(SECTIONS[section].splitlines())
    table: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("|"):
            first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            table[first.strip("`")] = cells
        elif table:
            break
    return table


def test_every_command_is_there_and_every_option_exists():
    shown = re.findall(r"`baton bench (\w+)([^`]*)`", TEXT)
    assert {name for name, _ in shown} == bench.commands.keys()
    for name, options in shown:
        known = {option for each in bench.commands[name].params for option in each.opts}
        assert set(re.findall(r"--\w+", options)) <= known


def test_every_case_is_explained_and_measured():
    assert set(CASES) <= rows("`baton bench kv`").keys()
    assert set(CASES) <= rows("Two processes on loopback").keys()


def test_what_is_worked_out_on_paper_was_measured():
    table = rows("Two processes on loopback")
    for case in ("baton", "baton_planes", "stock_libp2p"):
        assert float(table[case][0]) == pytest.approx(getattr(MEASURED, case), abs=0.5)
    assert f"{MEASURED.rest_s * 1000:.0f} ms" in SECTIONS[
        "On paper: a DGX Spark and a Mac Studio"
    ].replace("\n", " ")


def test_the_table_on_paper_is_what_the_command_prints():
    table = rows("On paper: a DGX Spark and a Mac Studio")
    for row in work_out().rows:
        rate, transfer, exposed, total, relation, _ = table[row.way]
        assert rate == f"{row.mb_per_s:.0f}"
        assert transfer == f"{row.transfer_s:.2f} s"
        assert exposed == f"{row.exposed_s:.3f} s"
        assert total == f"{row.total_s:.2f} s"
        assert relation == f"{row.of_published:.2f}x"
