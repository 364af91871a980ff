"""`baton bench kv`: how fast a KV cache moves between two nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.client import BenchError
from bench.kv.measure import KvReport, KvRow, measure_kv
from bench.kv.transfer import CASES, Case
from cli.local_pair import Tell
from node.config import ConfigError, parse_size

__all__ = ["kv"]


class _Size(click.ParamType[int]):
    name = "size"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            size = value if isinstance(value, int) else parse_size(value)
        except ConfigError as error:
            self.fail(error.problem, param, ctx)
        if size < 1:
            self.fail("a cache has at least one byte", param, ctx)
        return size


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--bytes",
    "nbytes",
    default="512MB",
    show_default=True,
    type=_Size(),
    metavar="SIZE",
    help="Of one cache, about: it is a whole number of tokens.",
)
@click.option(
    "--case",
    "cases",
    multiple=True,
    type=click.Choice(list(CASES)),
    help="What to measure; repeatable. All by default.",
)
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1, 1000))
@click.option(
    "--threads",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="That encode chunks.",
)
def kv(as_json: bool, nbytes: int, cases: tuple[Case, ...], runs: int, threads: int) -> None:
    """Measure how fast a KV cache moves between two processes of this machine.

    Nothing is computed: chunks shaped as those of Llama-3.1-8B are moved by the node's own code,
    and by other means for comparison, by turns.
    """
    with _telling("kv") as tell:
        report = measure_kv(
            nbytes=nbytes, runs=runs, cases=cases or tuple(CASES), threads=threads, tell=tell
        )
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        Console().print(_table(report))


@contextmanager
def _telling(purpose: str) -> Iterator[Tell]:
    """Say on stderr what is being done; exit with status 1, after telling why, if it fails."""
    console = Console(stderr=True, highlight=False)
    try:
        with console.status("starting") as status:

            def tell(what: str) -> None:
                status.update(what)

            yield tell
    except BenchError as error:
        console.print(Text.assemble((f"The {purpose} failed: ", "red"), str(error)))
        sys.exit(1)


def _table(report: KvReport) -> Table:
    first = report.rows[0]
    table = Table(title=f"{first.bytes / 1e6:.0f} MB of KV cache, medians of {first.runs} runs")
    table.add_column("case", no_wrap=True)
    for name in ("MB/s", "baton is", "CPU s/GB send", "receive", "MB more at peak", "receive"):
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(*_cells(row, report.ratios.get(row.case)))
    return table


def _cells(row: KvRow, ratio: float | None) -> tuple[str, ...]:
    return (
        row.case,
        f"{row.mb_per_s:.0f}",
        "" if ratio is None else f"{ratio:.2f}x",
        f"{row.cpu_s_per_gb_send:.2f}",
        f"{row.cpu_s_per_gb_receive:.2f}",
        f"{row.peak_growth_mb_send:.0f}",
        f"{row.peak_growth_mb_receive:.0f}",
    )
