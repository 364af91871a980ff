"""What nodes tell each other over pubsub: their own record, and the election's ballots."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from protocols.engine import EngineName

__all__ = [
    "Accelerator",
    "ElectionMessage",
    "GossipMessage",
    "Heartbeat",
    "Hello",
    "InstanceRecord",
    "InstanceState",
    "InterfaceClass",
    "InterfaceRecord",
    "Leave",
    "ModelRecord",
    "NodeRecord",
    "Quantization",
    "Role",
]

Role: TypeAlias = Literal["prefill", "decode"]
Accelerator: TypeAlias = Literal["apple", "nvidia", "cpu"]
Quantization: TypeAlias = Literal[
    "none",
    "mlx",
    "gptq",
    "awq",
    "fp8",
    "nvfp4",
    "mxfp4",
    "compressed-tensors",
    "bitsandbytes",
    "gguf",
    "other",
]
"""How a checkpoint's weights are stored; `none` is 16 or 32 bits a weight."""
InterfaceClass: TypeAlias = Literal[
    "thunderbolt", "ethernet", "wifi", "other", "loopback", "virtual"
]
InstanceState: TypeAlias = Literal["loading", "ready", "failed", "restarting"]


class InterfaceRecord(msgspec.Struct, frozen=True):
    """A network interface with its class from the hardware and its usable addresses."""

    name: str
    klass: InterfaceClass
    addresses: tuple[str, ...]
    """Without prefix length; link-local IPv6 carries no scope, which means nothing elsewhere."""
    speed_mbps: int = 0
    """0 when the driver does not say."""


class InstanceRecord(msgspec.Struct, frozen=True):
    """A loaded (or loading) model on a node."""

    id: str
    model: str
    base_model: str
    engine: EngineName
    roles: tuple[Role, ...]
    state: InstanceState
    load: int = 0
    """Requests it works on or has queued."""
    max_context: int = 0
    fingerprint: str = ""
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    kv_bytes_per_token: int = 0
    reason: str = ""
    """Why it is not ready."""
    progress: float = 0.0
    """How far loading is, from 0 to 1."""
    links: tuple[str, ...] = ()
    """Of a decode instance: the ids of the only instances that may prefill for it; none for any."""


class ModelRecord(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint on a node's disk. Sent without field names: a node may have many."""

    name: str
    """As the node calls it: NAME or OWNER/NAME."""
    base_model: str
    quantization: Quantization
    weight_bytes: int


class NodeRecord(msgspec.Struct, frozen=True, tag="record"):
    """Everything a node says of itself. The last writer wins, by (incarnation, sequence)."""

    peer_id: str
    incarnation: int
    """Grows with each start of the node; persisted."""
    sequence: int
    cluster: str
    host: str
    addresses: tuple[str, ...]
    """Multiaddrs without the peer id."""
    interfaces: tuple[InterfaceRecord, ...]
    roles: tuple[Role, ...]
    """What its user lets it do, as far as its engines can."""
    engines: tuple[EngineName, ...]
    memory_total: int
    """Bytes."""
    memory_free: int
    instances: tuple[InstanceRecord, ...]
    api: str = ""
    """Where the HTTP API listens, as host:port."""
    version: str = ""
    term: int = 0
    """The highest election term that the node knows of."""
    accelerator: Accelerator = "cpu"
    models: tuple[ModelRecord, ...] = ()
    """What is on its disk, loaded or not."""
    master: str = ""
    """The peer id of the master that it follows, or its own; empty for none."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """The node is going, on purpose."""

    peer_id: str
    incarnation: int


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """What the master says every second, and a candidate when it claims a term."""

    peer_id: str
    term: int
    """No other node ever claims the same; see `node/election/terms.py`."""
    followers: int = 1
    """How many nodes follow the sender, itself included."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """What each side of a new connection sends to the other, on a stream of its own."""

    record: NodeRecord
    claim: Heartbeat | None = None
    """The sender's claim, if it is the master."""
    known: NodeRecord | None = None
    """What the sender last heard of the receiver. If that is not what the receiver said, another
    node may have its identity; and if it is newer than what it says now, nobody listens to it."""
    clock: float = 0.0
    """Seconds since 1970 by the sender's clock; 0 if it does not say."""


ElectionMessage: TypeAlias = Heartbeat
GossipMessage: TypeAlias = NodeRecord | Leave | Heartbeat
