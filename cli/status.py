"""`baton status`: the cluster as one of its nodes sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click
import httpx
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cli.api import NodeUnreachable, api_option, connect, get
from cli.cluster_document import Cluster, decode_cluster
from cli.status_tables import render

__all__ = ["status"]

_WATCH_INTERVAL_S: Final = 1.0
_WATCH_ANSWER_S: Final = 5.0
"""A node that takes longer is said not to answer, and asked again."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the document as JSON.")
@click.option("--watch", is_flag=True, help="Keep showing it, until Ctrl-C.")
@click.option("--links", "all_links", is_flag=True, help="Show every link of every node.")
@api_option
def status(api: str, as_json: bool, watch: bool, all_links: bool) -> None:
    """Show the cluster: nodes, links, instances, master.

    With --watch, a terminal is redrawn every second. Anything else gets the tables every second,
    or with --json a document per line; while the node does not answer, it gets nothing.
    """
    with connect(api) as client:
        document = get(client, "/v1/cluster")
        cluster = decode_cluster(document)
        console = Console()
        if not watch:
            if as_json:
                click.echo(msgspec.json.format(document, indent=2).decode())
            else:
                console.print(render(cluster, all_links=all_links))
            return
        with suppress(KeyboardInterrupt):
            if as_json:
                _watch_json(client, api, document)
            else:
                _watch_tables(client, api, console, cluster, all_links)


def _watch_json(client: httpx.Client, api: str, document: bytes) -> None:
    answers = True
    while True:
        if answers:
            click.echo(msgspec.json.format(document, indent=-1).decode())
        time.sleep(_WATCH_INTERVAL_S)
        try:
            document = _ask(client, api)
            decode_cluster(document)
        except click.ClickException as error:
            if answers:
                click.echo(f"{error.message}; trying again", err=True)
            answers = False
        else:
            answers = True


def _watch_tables(
    client: httpx.Client, api: str, console: Console, cluster: Cluster, all_links: bool
) -> None:
    trouble = ""
    with _drawing(console) as draw:
        while True:
            tables = render(cluster, all_links=all_links)
            draw(Group(Text(trouble, style="bold red"), tables) if trouble else tables)
            time.sleep(_WATCH_INTERVAL_S)
            try:
                cluster, trouble = decode_cluster(_ask(client, api)), ""
            except click.ClickException as error:
                since = time.strftime("%H:%M:%S")
                trouble = trouble or f"{error.message}; trying again. As it was at {since}:"


def _ask(client: httpx.Client, api: str) -> bytes:
    """Return the document.

    Raises:
        ClickException: nobody answers, or with an error.
    """
    try:
        return get(client, "/v1/cluster", timeout_s=_WATCH_ANSWER_S)
    except httpx.TransportError as error:
        raise NodeUnreachable(api) from error


@contextmanager
def _drawing(console: Console) -> Iterator[Callable[[Group], None]]:
    """Yield what shows a picture in place of the last one; without a terminal, after it."""
    if not console.is_terminal:
        yield lambda picture: console.print(time.strftime("%H:%M:%S"), picture)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda picture: live.update(picture, refresh=True)
