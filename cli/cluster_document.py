"""The `/v1/cluster` document as the command line reads it: `docs/cluster-status.md`.

Everything has a default, so that nodes of other versions are shown too.
"""

from __future__ import annotations

import msgspec

from cli.api import ApiError

__all__ = ["Cluster", "Instance", "Link", "Node", "decode_cluster", "printable"]


class Master(msgspec.Struct):
    """Who is master."""

    peer_id: str = ""
    round: int = 0


class Memory(msgspec.Struct):
    """Bytes."""

    total: int = 0
    free: int = 0


class Instance(msgspec.Struct):
    """A model on a node."""

    model: str = ""
    engine: str = ""
    role: str = ""
    state: str = ""
    load: int = 0
    reason: str = ""
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0


class Node(msgspec.Struct):
    """A member."""

    peer_id: str = ""
    host: str = ""
    state: str = ""
    roles: list[str] = []
    engines: list[str] = []
    memory: Memory = msgspec.field(default_factory=Memory)
    instances: list[Instance] = []
    version: str = ""
    last_seen_s: float = 0.0


class Link(msgspec.Struct):
    """A connection, as the node `source` sees it."""

    source: str = msgspec.field(default="", name="from")
    to: str = ""
    klass: str = msgspec.field(default="", name="class")
    address: str = ""
    mb_per_s: float | None = None
    rtt_ms: float | None = None
    in_use: bool = False
    interface: str = ""


class Cluster(msgspec.Struct):
    """The document."""

    cluster: str = ""
    self_id: str = msgspec.field(default="", name="self")
    master: Master | None = None
    nodes: list[Node] = []
    links: list[Link] = []
    links_missing_from: list[str] = []

    def names(self) -> dict[str, str]:
        """Return a name for each node, by peer id; equal names get the end of the id added."""
        hosts = {node.peer_id: printable(node.host.removesuffix(".local")) for node in self.nodes}
        given = list(hosts.values())
        return {
            peer_id: host
            if host and given.count(host) == 1
            else f"{host}/{printable(peer_id[-4:])}"
            for peer_id, host in hosts.items()
        }


def decode_cluster(document: bytes) -> Cluster:
    """Read a document.

    Raises:
        ApiError: it is none.
    """
    try:
        return msgspec.json.decode(document, type=Cluster)
    except msgspec.DecodeError as error:
        raise ApiError(f"the node's answer is not understood: {error}") from error


def printable(text: str) -> str:
    """Return a text without what would move the cursor, or worse: names are other machines' say."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
