"""The command `baton`; its subcommands are imported when they are used."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Final

import click

__all__ = ["main"]

_COMMANDS: Final = {
    "bench": "cli.bench:bench",
    "chat": "cli.chat:chat",
    "demo": "cli.demo:demo",
    "doctor": "cli.doctor:doctor",
    "models": "cli.models:models",
    "status": "cli.status:status",
    "up": "cli.up:up",
}


class _LazyGroup(click.Group):
    """Imports a command's module only when the command is named, so that each starts quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("baton"), prog_name="baton")
def main() -> None:
    """One LLM server out of the machines you own: one prefills, another decodes."""


if __name__ == "__main__":
    main(prog_name="baton")
