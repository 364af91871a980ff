"""`baton up`: start a node."""

from __future__ import annotations

from typing import get_args

import click

from cli.logs import node_display
from node.config import ConfigError, LogLevel, load_config
from node.errors import BatonError
from node.hardware import EngineChoice, RoleChoice
from protocols.chat import PrefillPolicy

__all__ = ["up"]


@click.command()
@click.option("--model", "models", multiple=True, metavar="M", help="Load this model; repeatable.")
@click.option("--role", type=click.Choice(get_args(RoleChoice)), help="What this machine does.")
@click.option("--engine", type=click.Choice(get_args(EngineChoice)), help="What it does it with.")
@click.option("--api", metavar="HOST:PORT", help="Where the HTTP API listens.")
@click.option("--peer", "peers", multiple=True, metavar="ADDR", help="Dial this too; repeatable.")
@click.option(
    "--interface", "interfaces", multiple=True, metavar="NAME", help="Use no other; repeatable."
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port for the other nodes.")
@click.option("--cluster", metavar="NAME", help="Join the nodes that have the same name here.")
@click.option(
    "--secret-file", metavar="FILE", help="Only nodes with the same secret in theirs can join."
)
@click.option("--data-dir", metavar="DIR", help="Where the node keeps its identity.")
@click.option("--models-dir", metavar="DIR", help="Where checkpoints are.")
@click.option("--overlap/--no-overlap", default=None, help="Send the cache while it is computed.")
@click.option(
    "--remote-prefill",
    type=click.Choice(get_args(PrefillPolicy)),
    help="Where to prefill requests that do not say.",
)
@click.option(
    "--remote-prefill-min-tokens",
    type=click.IntRange(min=0),
    metavar="N",
    help="Prefill shorter prompts where they are decoded.",
)
@click.option("--memory", metavar="SIZE", help="For an engine's KV cache, such as 8GiB.")
@click.option("--log-level", type=click.Choice(get_args(LogLevel)))
def up(**flags: object) -> None:
    """Start a node.

    It finds the others by itself, and serves an API that is compatible with OpenAI's.

    What is not given here is taken from BATON_* in the environment, then from
    ~/.config/baton/config.toml.
    """
    given = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in flags.items()
        if value is not None and value != ()
    }
    try:
        config = load_config(given)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    # Imported late: it is what takes long, and wrong usage is told without it.
    from node.app import run

    try:
        with node_display(config.log_level) as on_loading:
            run(config, on_loading)
    except BatonError as error:
        raise click.ClickException(str(error)) from error
