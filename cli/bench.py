"""`baton bench`: measurements on this machine."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console
from rich.table import Table

from bench.prefill import PrefillReport, measure_prefill, prompt_of
from cli.bench_kv import kv
from cli.local_pair import demo_prompt, local_pair
from node.models import BUNDLED_MODEL

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measure, each time against a reference in the same run."""


bench.add_command(kv)


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--model", default=BUNDLED_MODEL, show_default=True, metavar="M")
@click.option(
    "--words",
    multiple=True,
    type=click.IntRange(1, 100_000),
    default=(300, 800, 1500),
    show_default=True,
    help="Length of a prompt; repeatable.",
)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
def prefill(as_json: bool, model: str, words: tuple[int, ...], rounds: int) -> None:
    """Compare time to first token with what the prefill engine needs by itself.

    Starts a prefill node and a decode node on the loopback interface.
    """
    prompts = [prompt_of(demo_prompt(), count) for count in words]
    with local_pair(model, "bench") as (filler, decoder, tell):
        report = measure_prefill(filler, decoder, model, prompts, rounds=rounds, tell=tell)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        Console().print(_table(report))


def _table(report: PrefillReport) -> Table:
    table = Table(title=f"{report.model}, medians of {report.rounds} rounds")
    for name in (
        "prompt tokens",
        "vLLM alone",
        "time to first token",
        "ratio",
        "MB moved",
        "transfer",
        "hidden",
    ):
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(
            str(row.prompt_tokens),
            f"{row.engine_prefill_s:.2f} s",
            f"{row.ttft_s:.2f} s",
            f"{row.overhead:.2f}",
            f"{row.bytes / 1e6:.1f}",
            f"{row.transfer_s:.2f} s",
            f"{row.hidden_fraction:.0%}",
        )
    return table
