"""`baton status`: the cluster as one of its nodes sees it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.api import ApiError, api_option, connect, get

__all__ = ["status"]

_WATCH_INTERVAL_S: Final = 1.0
_STATE_STYLES: Final = {
    "alive": "green",
    "ready": "green",
    "loading": "yellow",
    "restarting": "yellow",
    "suspect": "yellow",
    "gone": "red",
    "failed": "red",
}


# What is shown of the document. Everything has a default: nodes of other versions are shown too.


class _Master(msgspec.Struct):
    peer_id: str = ""
    round: int = 0


class _Memory(msgspec.Struct):
    total: int = 0
    free: int = 0


class _Instance(msgspec.Struct):
    model: str = ""
    engine: str = ""
    role: str = ""
    state: str = ""
    load: int = 0
    reason: str = ""


class _Node(msgspec.Struct):
    peer_id: str = ""
    host: str = ""
    state: str = ""
    roles: list[str] = []
    engines: list[str] = []
    memory: _Memory = msgspec.field(default_factory=_Memory)
    instances: list[_Instance] = []


class _Link(msgspec.Struct):
    source: str = msgspec.field(default="", name="from")
    to: str = ""
    klass: str = msgspec.field(default="", name="class")
    address: str = ""
    mb_per_s: float | None = None
    rtt_ms: float | None = None
    in_use: bool = False


class _Cluster(msgspec.Struct):
    cluster: str = ""
    self_id: str = msgspec.field(default="", name="self")
    master: _Master | None = None
    nodes: list[_Node] = []
    links: list[_Link] = []


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--watch", is_flag=True, help="Keep showing it, until Ctrl-C.")
@api_option
def status(api: str, as_json: bool, watch: bool) -> None:
    """Show the cluster: nodes, links, instances, master."""
    if as_json and watch:
        raise click.UsageError("--json prints one document; it does not go with --watch")
    with connect(api) as client:
        document = get(client, "/v1/cluster")
        cluster = _decode(document)
        if as_json:
            click.echo(msgspec.json.format(document, indent=2).decode())
            return
        console = Console()
        if not watch:
            console.print(_render(cluster))
            return
        with (
            suppress(KeyboardInterrupt),
            Live(_render(cluster), console=console, screen=console.is_terminal) as live,
        ):
            while True:
                time.sleep(_WATCH_INTERVAL_S)
                live.update(_render(_decode(get(client, "/v1/cluster"))), refresh=True)


def _decode(document: bytes) -> _Cluster:
    try:
        return msgspec.json.decode(document, type=_Cluster)
    except msgspec.DecodeError as error:
        raise ApiError(f"the node's answer is not understood: {error}") from error


def _render(cluster: _Cluster) -> Group:
    names = {node.peer_id: node.host or node.peer_id[-8:] for node in cluster.nodes}
    parts = [_title(cluster, names), _nodes_table(cluster)]
    if any(node.instances for node in cluster.nodes):
        parts.append(_instances_table(cluster))
    if cluster.links:
        parts.append(_links_table(cluster, names))
    return Group(*parts)


def _title(cluster: _Cluster, names: dict[str, str]) -> Text:
    title = Text.assemble("Cluster ", (cluster.cluster, "bold"), ", ")
    if cluster.master is None:
        return title.append("no master elected")
    master = names.get(cluster.master.peer_id, cluster.master.peer_id)
    return title.append(f"master {master} (term {cluster.master.round})")


def _nodes_table(cluster: _Cluster) -> Table:
    table = Table("node", "peer id", "state", "roles", "engines", title="Nodes")
    table.add_column("free / total", justify="right")
    for node in cluster.nodes:
        here = " (this one)" if node.peer_id == cluster.self_id else ""
        table.add_row(
            Text(node.host + here),
            Text(node.peer_id[-8:], style="dim"),
            _state(node.state),
            Text(", ".join(node.roles)),
            Text(", ".join(node.engines)),
            f"{node.memory.free / 2**30:.1f} / {node.memory.total / 2**30:.1f} GiB",
        )
    return table


def _instances_table(cluster: _Cluster) -> Table:
    table = Table("model", "node", "engine", "role", "state", title="Instances")
    table.add_column("load", justify="right")
    for node in cluster.nodes:
        for each in node.instances:
            state = _state(each.state)
            if each.reason:
                state.append(f": {each.reason}", style="dim")
            table.add_row(
                Text(each.model),
                Text(node.host),
                Text(each.engine),
                Text(each.role),
                state,
                str(each.load),
            )
    return table


def _links_table(cluster: _Cluster, names: dict[str, str]) -> Table:
    table = Table("from", "to", "class", "address", title="Links")
    table.add_column("MB/s", justify="right")
    table.add_column("rtt", justify="right")
    table.add_column("in use")
    for link in cluster.links:
        table.add_row(
            Text(names.get(link.source, link.source[-8:])),
            Text(names.get(link.to, link.to[-8:])),
            Text(link.klass),
            Text(link.address),
            "-" if link.mb_per_s is None else f"{link.mb_per_s:.0f}",
            "-" if link.rtt_ms is None else f"{link.rtt_ms:.2f} ms",
            "yes" if link.in_use else "",
        )
    return table


def _state(state: str) -> Text:
    return Text(state, style=_STATE_STYLES.get(state, ""))
