"""`baton bench kv`: how fast a KV cache moves between two nodes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.client import BenchError
from bench.kv.concurrent import ConcurrentReport, measure_concurrent
from bench.kv.data import ENCODERS
from bench.kv.links import LINK_CASES, LinkReport, LinksReport, measure_links
from bench.kv.measure import KvReport, KvRow, measure_kv
from bench.kv.transfer import CASES, Case
from bench.namespaces import NamespacesUnavailable
from cli.local_pair import Tell
from node.config import ConfigError, parse_size

__all__ = ["RATE", "kv", "telling"]


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


class _Rate(click.ParamType[float]):
    name = "rate"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            rate = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of MB/s", param, ctx)
        if not 0 < rate < math.inf:
            self.fail("a link has a rate above 0 MB/s", param, ctx)
        return rate


RATE = _Rate()
"""The type of an option that is a link's rate in MB/s."""


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
    default=ENCODERS,
    show_default=True,
    type=click.IntRange(1, 64),
    help="That encode chunks.",
)
@click.option(
    "--link",
    "rates",
    multiple=True,
    type=RATE,
    metavar="MB/S",
    help="Measure over a link of this rate, in network namespaces (Linux, as root); repeatable.",
)
@click.option(
    "--concurrent",
    type=click.IntRange(2, 16),
    metavar="N",
    help="Measure N caches of different sizes, to N nodes at once, against one alone.",
)
def kv(
    as_json: bool,
    nbytes: int,
    cases: tuple[Case, ...],
    runs: int,
    threads: int,
    rates: tuple[float, ...],
    concurrent: int | None,
) -> None:
    """Measure how fast a KV cache moves between two processes of this machine.

    Nothing is computed: chunks shaped as those of Llama-3.1-8B are moved by the node's own code,
    and by other means for comparison, by turns.
    """
    if rates and concurrent:
        raise click.UsageError("--link and --concurrent are measured one at a time")
    if concurrent and len(cases) > 1:
        raise click.UsageError("--concurrent is measured of one case at a time")
    report: KvReport | LinksReport | ConcurrentReport
    with telling("kv") as tell:
        if rates:
            report = measure_links(
                rates,
                nbytes=nbytes,
                runs=runs,
                cases=cases or LINK_CASES,
                threads=threads,
                tell=tell,
            )
        elif concurrent:
            report = measure_concurrent(
                concurrent,
                nbytes=nbytes,
                runs=runs,
                case=cases[0] if cases else "baton",
                threads=threads,
                tell=tell,
            )
        else:
            report = measure_kv(
                nbytes=nbytes, runs=runs, cases=cases or tuple(CASES), threads=threads, tell=tell
            )
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    match report:
        case KvReport():
            Console().print(_table(report))
        case LinksReport():
            for link in report.links:
                Console().print(_link_table(link))
        case ConcurrentReport():
            _show_concurrent(Console(highlight=False), report)


@contextmanager
def telling(purpose: str) -> Iterator[Tell]:
    """Say on stderr what is being done; exit with status 1, after telling why, if it fails."""
    console = Console(stderr=True, highlight=False)
    try:
        with console.status("starting") as status:

            def tell(what: str) -> None:
                status.update(what)
                if not console.is_terminal:
                    console.print(what)

            yield tell
    except (BenchError, NamespacesUnavailable) as error:
        console.print(Text.assemble((f"The {purpose} failed: ", "red"), str(error)))
        sys.exit(1)


def _table(report: KvReport) -> Table:
    first = report.rows[0]
    table = Table(title=f"{first.bytes / 1e6:.0f} MB of KV cache, medians of {first.runs} runs")
    _add_columns(table, "baton is")
    for row in report.rows:
        ratio = report.ratios.get(row.case)
        table.add_row(*_cells(row, "" if ratio is None else f"{ratio:.2f}x"))
    return table


def _link_table(link: LinkReport) -> Table:
    first = link.rows[0]
    table = Table(
        title=f"A link of {link.link_mb_per_s:g} MB/s, {first.bytes / 1e6:.0f} MB of KV cache, "
        f"medians of {first.runs} runs"
    )
    _add_columns(table, "of the link")
    for row in link.rows:
        table.add_row(*_cells(row, f"{link.shares[row.case]:.0%}"))
    return table


def _add_columns(table: Table, relation: str) -> None:
    table.add_column("case", no_wrap=True)
    for name in ("MB/s", relation, "CPU s/GB send", "receive", "MB more at peak", "receive"):
        table.add_column(name, justify="right")


def _cells(row: KvRow, relation: str) -> tuple[str, ...]:
    return (
        row.case,
        f"{row.mb_per_s:.0f}",
        relation,
        f"{row.cpu_s_per_gb_send:.2f}",
        f"{row.cpu_s_per_gb_receive:.2f}",
        f"{row.peak_growth_mb_send:.0f}",
        f"{row.peak_growth_mb_receive:.0f}",
    )


def _show_concurrent(console: Console, report: ConcurrentReport) -> None:
    table = Table(title=f"{len(report.rows)} transfers at once, medians of {report.runs} runs")
    for name in ("MB", "MB/s", "first chunk", "longest wait", "of an equal share"):
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(
            f"{row.bytes / 1e6:.0f}",
            f"{row.mb_per_s:.0f}",
            f"{row.first_chunk_s * 1000:.0f} ms",
            f"{row.longest_wait_s * 1000:.0f} ms",
            f"{row.share:.2f}",
        )
    console.print(table)
    console.print(
        f"Together {report.together_mb_per_s:.0f} MB/s, which is {report.ratio:.2f} times what one "
        f"alone moves ({report.alone_mb_per_s:.0f} MB/s)."
    )
