"""The cluster as tables for people, readable in 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.cluster_document import Cluster, Link, Node, printable

__all__ = ["render"]

_STATE_STYLES: Final = {
    "alive": "green",
    "ready": "green",
    "loading": "yellow",
    "restarting": "yellow",
    "suspect": "yellow",
    "unreachable": "red",
    "gone": "red",
    "failed": "red",
}
_INSTANCE_COLUMNS: Final = {"engine": 6, "role": 7, "state": 11}
"""With their widths, which keeps the tables of several models in line."""
_DURATIONS: Final = ((7200, 3600, "h"), (120, 60, "min"), (0, 1, "s"))


def render(cluster: Cluster, *, all_links: bool = False) -> Group:
    """Return what is shown of a cluster.

    Args:
        cluster: the document.
        all_links: show every link of every node, which is many; else the ones that the node which
            answered uses.
    """
    names = cluster.names()
    parts: list[RenderableType] = [_title(cluster, names), _nodes_table(cluster, names)]
    if any(node.instances for node in cluster.nodes):
        parts += [*_instances(cluster, names), *_reasons(cluster, names)]
    if all_links and cluster.links:
        parts += [Text(), _all_links_table(cluster.links, names)]
    elif cluster.links:
        parts += [Text(), *_links_in_use(cluster, names)]
    if cluster.links_missing_from:
        silent = ", ".join(_name(peer_id, names) for peer_id in cluster.links_missing_from)
        parts.append(Text(f"links not told in time by: {silent}", style="yellow"))
    return Group(*parts)


def _title(cluster: Cluster, names: Mapping[str, str]) -> Text:
    alive = sum(node.state == "alive" for node in cluster.nodes)
    count = f"{alive} node{'' if alive == 1 else 's'}"
    if alive < len(cluster.nodes):
        count = f"{alive} of {len(cluster.nodes)} nodes"
    title = Text.assemble("Cluster ", (printable(cluster.cluster), "bold"), f", {count}, ")
    if cluster.master is None:
        return title.append("no master elected")
    master = _name(cluster.master.peer_id, names)
    return title.append(f"master {master} (round {cluster.master.round})")


def _nodes_table(cluster: Cluster, names: Mapping[str, str]) -> Table:
    table = _table("node", "state", "role", "engines")
    table.add_column("free / total", justify="right", no_wrap=True)
    versions = {node.version for node in cluster.nodes}
    if len(versions) > 1:
        table.add_column("version")
    for node in cluster.nodes:
        here = " (here)" if node.peer_id == cluster.self_id else ""
        cells = [
            Text(_name(node.peer_id, names) + here),
            _node_state(node),
            Text("both" if len(node.roles) > 1 else printable("".join(node.roles))),
            Text(printable(", ".join(node.engines))),
            Text(f"{node.memory.free / 2**30:.1f} / {node.memory.total / 2**30:.1f} GiB"),
        ]
        if len(versions) > 1:
            cells.append(Text(printable(node.version)))
        table.add_row(*cells)
    return table


def _node_state(node: Node) -> Text:
    state = _state(node.state)
    if node.state != "alive":
        state.append(f" {_duration(node.last_seen_s)}", style="dim")
    return state


def _instances(cluster: Cluster, names: Mapping[str, str]) -> Iterable[RenderableType]:
    """Show models with the nodes that have them; long names get a line of their own."""
    models = {each.model for node in cluster.nodes for each in node.instances}
    for model in sorted(models):
        yield Text(f"\n{printable(model)}", style="bold")
        table = _table()
        table.add_column("node", min_width=max(map(len, names.values())), overflow="fold")
        for column, width in _INSTANCE_COLUMNS.items():
            table.add_column(column, min_width=width)
        table.add_column("load", justify="right")
        table.add_column("tokens/s", justify="right", min_width=12)
        for node in cluster.nodes:
            for each in node.instances:
                if each.model == model:
                    table.add_row(
                        Text(_name(node.peer_id, names)),
                        Text(printable(each.engine)),
                        Text(printable(each.role)),
                        _state(each.state),
                        str(each.load),
                        _rates(each.prefill_tokens_per_s, each.decode_tokens_per_s),
                    )
        yield table


def _rates(prefill: float, decode: float) -> str:
    """Return prefill and decode rates; `-` for what has not been measured."""
    if not prefill and not decode:
        return "-"
    return " / ".join(f"{rate:.0f}" if rate else "-" for rate in (prefill, decode))


def _reasons(cluster: Cluster, names: Mapping[str, str]) -> Iterable[Text]:
    for node in cluster.nodes:
        for each in node.instances:
            if each.reason:
                where = f"{printable(each.model)} on {_name(node.peer_id, names)}"
                reason = printable(each.reason)
                yield Text.assemble(where, " ", _state(each.state), f": {reason}")


def _links_in_use(cluster: Cluster, names: Mapping[str, str]) -> list[RenderableType]:
    ours = [link for link in cluster.links if link.source == cluster.self_id]
    used = [link for link in ours if link.in_use]
    parts: list[RenderableType] = []
    if used:
        table = _table("link to", "class", "over", "at")
        _add_measures(table)
        for link in used:
            table.add_row(Text(_name(link.to, names)), *_route(link), *_measures(link))
        parts.append(table)
    spare, elsewhere = len(ours) - len(used), len(cluster.links) - len(ours)
    others = [f"{spare} in reserve"] if spare else []
    others += [f"{elsewhere} told of by the other nodes"] if elsewhere else []
    if others:
        parts.append(Text(f"and {', '.join(others)}: --links shows them", style="dim"))
    return parts


def _all_links_table(links: Iterable[Link], names: Mapping[str, str]) -> Table:
    table = _table("from", "to", "class", "over", "at")
    _add_measures(table)
    table.add_column("used")
    for link in links:
        table.add_row(
            Text(_name(link.source, names)),
            Text(_name(link.to, names)),
            *_route(link),
            *_measures(link),
            "yes" if link.in_use else "",
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _add_measures(table: Table) -> None:
    table.add_column("MB/s", justify="right", no_wrap=True)
    table.add_column("rtt", justify="right", no_wrap=True)


def _measures(link: Link) -> tuple[str, str]:
    return (
        "-" if link.mb_per_s is None else f"{link.mb_per_s:.0f}",
        "-" if link.rtt_ms is None else f"{link.rtt_ms:.2f} ms",
    )


def _route(link: Link) -> tuple[Text, Text, Text]:
    """Return class, interface of ours and IP address of theirs."""
    protocol, _, rest = link.address.removeprefix("/").partition("/")
    ip = rest.partition("/")[0] if protocol in {"ip4", "ip6"} else link.address
    return Text(printable(link.klass)), Text(printable(link.interface) or "-"), Text(printable(ip))


def _name(peer_id: str, names: Mapping[str, str]) -> str:
    return names.get(peer_id) or printable(peer_id[-8:])


def _state(state: str) -> Text:
    return Text(printable(state), style=_STATE_STYLES.get(state, ""))


def _duration(seconds: float) -> str:
    for least, unit, name in _DURATIONS:
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    return ""
