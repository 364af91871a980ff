"""`baton bench`: measurements on this machine."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console
from rich.table import Table

from bench.prefill import PrefillReport, measure_prefill, prompt_of, words_for
from cli.bench_kv import RATE, kv
from cli.bench_paper import paper
from cli.local_pair import demo_prompt, local_pair
from node.models import BUNDLED_MODEL

__all__ = ["bench", "prefill_table"]


@click.group()
def bench() -> None:
    """Measure, each time against a reference in the same run."""


bench.add_command(kv)
bench.add_command(paper)


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--model", default=BUNDLED_MODEL, show_default=True, metavar="M")
@click.option(
    "--tokens",
    multiple=True,
    type=click.IntRange(64, 1_000_000),
    default=(1000, 4000, 8000),
    show_default=True,
    help="Length of a prompt, about; repeatable.",
)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option(
    "--link",
    "rate",
    type=RATE,
    metavar="MB/S",
    help="Join the nodes by a link of this rate, in network namespaces (Linux, as root).",
)
def prefill(
    as_json: bool, model: str, tokens: tuple[int, ...], rounds: int, rate: float | None
) -> None:
    """Compare time to first token with what the engines need by themselves.

    Starts a prefill node and a decode node on this machine.
    """
    with local_pair(model, "bench", link_mb_per_s=rate) as (filler, decoder, tell):
        words = words_for(filler, model, demo_prompt(), tokens)
        prompts = [prompt_of(demo_prompt(), count) for count in words]
        report = measure_prefill(
            filler, decoder, model, prompts, rounds=rounds, link_mb_per_s=rate, tell=tell
        )
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        Console().print(prefill_table(report))


def prefill_table(report: PrefillReport) -> Table:
    """Return what is printed of a report."""
    over = "" if report.link_mb_per_s is None else f", over {report.link_mb_per_s:g} MB/s"
    table = Table(title=f"{report.model}{over}, medians of {report.rounds} rounds")
    names = ["prompt tokens", "prefill alone", "decode step", "first token", "ratio"]
    if report.link_mb_per_s is not None:
        names.append("of the ideal")
    for name in (*names, "MB moved", "transfer", "hidden"):
        table.add_column(name, justify="right")
    for row in report.rows:
        cells = [
            str(row.prompt_tokens),
            f"{row.engine_prefill_s:.2f} s",
            f"{row.decode_step_s:.2f} s",
            f"{row.ttft_s:.2f} s",
            f"{row.overhead:.2f}",
        ]
        if report.link_mb_per_s is not None:
            cells.append(f"{row.over_ideal:.2f}")
        table.add_row(
            *cells,
            f"{row.bytes / 1e6:.1f}",
            f"{row.transfer_s:.2f} s",
            f"{row.hidden_fraction:.0%}",
        )
    return table
