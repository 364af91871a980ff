"""`baton bench paper`: a hand-off between machines that are not here."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console
from rich.table import Table

from bench.paper import MEASURED, TEN_GBE, PaperReport, work_out
from cli.bench_kv import RATE

__all__ = ["paper"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--goodput",
    type=RATE,
    default=MEASURED.baton,
    show_default=True,
    metavar="MB/S",
    help="That the nodes reach, as `baton bench kv` measures it on them.",
)
@click.option(
    "--link",
    "link",
    type=RATE,
    default=round(TEN_GBE),
    show_default=True,
    metavar="MB/S",
    help="That the link carries of TCP's payload.",
)
def paper(as_json: bool, goodput: float, link: float) -> None:
    """Work out what a DGX Spark and a Mac Studio would take, against published times.

    Llama-3.1-8B, 8,192 tokens read and 32 written. The engines' times are the published ones; those
    of the cache's way follow from what was measured (docs/performance.md).
    """
    measured = msgspec.structs.replace(MEASURED, baton=goodput)
    report = work_out(measured, link_mb_per_s=link)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        _show(Console(highlight=False), report)


def _show(console: Console, report: PaperReport) -> None:
    published = report.published
    table = Table(
        title=f"{published.tokens} tokens of Llama-3.1-8B, over {report.link_mb_per_s:.0f} MB/s"
    )
    table.add_column("way", no_wrap=True)
    for name in ("MB/s", "transfer", "exposed", "total", "to published", "beats, prefill"):
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(
            row.way,
            f"{row.mb_per_s:.0f}",
            f"{row.transfer_s:.2f} s",
            f"{row.exposed_s:.3f} s",
            f"{row.total_s:.2f} s",
            f"{row.of_published:.2f}x",
            f"< {row.prefill_to_beat_s:.2f} s" if row.prefill_to_beat_s else "never",
        )
    console.print(table)
    console.print(
        f"Published: {published.total_s:.2f} s, of which {published.prefill_s:.2f} s prefill and "
        f"{published.decode_s:.2f} s decode. From {report.mb_per_s_to_hide:.0f} MB/s on, all of "
        "the transfer but the last layer's is hidden behind the computation."
    )
