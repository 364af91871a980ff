"""`baton demo`: two nodes on this machine, a real model, one long prompt read both ways."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from bench.handoff import Handoff, measure_handoff
from cli.local_pair import demo_prompt, local_pair
from node.models import BUNDLED_MODEL

__all__ = ["demo", "show"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 20))
def demo(as_json: bool, rounds: int) -> None:
    """Show on this machine what a second machine is good for.

    Starts a prefill node (vLLM) and a decode node (MLX) on the loopback interface, lets them find
    each other, and has them read a long prompt: first vLLM for MLX, then MLX by itself.
    """
    with local_pair(BUNDLED_MODEL, "demo") as (prefill, decode, tell):
        result = measure_handoff(
            prefill, decode, BUNDLED_MODEL, demo_prompt(), rounds=rounds, tell=tell
        )
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        show(Console(), result)
    sys.exit(0 if result.answers_equal else 1)


def show(console: Console, result: Handoff) -> None:
    """Print a result: the answer, and a table."""
    local, remote = result.local, result.remote
    console.print(Panel(result.answer.strip(), title=f"{result.model} answers", expand=False))
    table = Table(title=f"{result.prompt_tokens} prompt tokens, greedy")
    table.add_column("")
    table.add_column("local prefill (MLX)", justify="right")
    table.add_column("remote prefill (vLLM to MLX)", justify="right")
    table.add_row("prefill", f"{local.prefill_s:.2f} s", f"{remote.prefill_s:.2f} s")
    table.add_row("time to first token", f"{local.ttft_s:.2f} s", f"{remote.ttft_s:.2f} s")
    moved = f"{remote.bytes / 1e6:.1f} MB at {remote.mb_per_s:.0f} MB/s"
    table.add_row("KV cache moved", "-", moved)
    table.add_row("codec", "-", f"{remote.codec}, {remote.ratio:.2f} times smaller")
    table.add_row("hidden behind compute", "-", f"{remote.hidden_fraction:.0%}")
    table.add_row("vLLM alone", "-", f"{remote.engine_prefill_s:.2f} s")
    console.print(table)
    same = "the same answer" if result.answers_equal else "[red]a different answer[/]"
    console.print(
        f"Time to first token is [bold]{result.speedup:.1f} times[/] better with remote prefill, "
        f"with {same}; it is {result.overhead:.2f} times what vLLM alone needs for the prompt."
    )
