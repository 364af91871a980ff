"""`baton demo`: two nodes on this machine, a real model, one long prompt read both ways."""

from __future__ import annotations

import secrets
import sys
from importlib import resources

import click
import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from bench.client import BenchError
from bench.handoff import Handoff, measure_handoff
from bench.nodes import NodeFailed, start_pair

__all__ = ["demo", "show"]

MODEL = "SmolLM2-135M-Instruct"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 20))
def demo(as_json: bool, rounds: int) -> None:
    """Show on this machine what a second machine is good for.

    Starts a prefill node (vLLM) and a decode node (MLX) on the loopback interface, lets them find
    each other, and has them read a long prompt: first vLLM for MLX, then MLX by itself.
    """
    console = Console(stderr=True)
    prompt = (resources.files("cli") / "demo_prompt.txt").read_text(encoding="utf-8")
    try:
        with console.status("starting") as status:

            def tell(text: str) -> None:
                status.update(text)
                if not console.is_terminal:
                    console.print(text, highlight=False)

            with start_pair(MODEL, f"demo-{secrets.token_hex(3)}", tell) as (prefill, decode):
                result = measure_handoff(prefill, decode, MODEL, prompt, rounds=rounds, tell=tell)
    except (NodeFailed, BenchError) as error:
        console.print(f"[red]The demo failed:[/] {error}", highlight=False)
        sys.exit(1)
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
