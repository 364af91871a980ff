"""Makes the records that nodes gossip."""

from __future__ import annotations

from typing import Any

from protocols.gossip import InstanceRecord, NodeRecord


def node_record(peer_id: str, *instances: InstanceRecord, **changes: Any) -> NodeRecord:
    fields: dict[str, Any] = {
        "incarnation": 1,
        "sequence": 1,
        "cluster": "test",
        "host": f"host-{peer_id}",
        "addresses": (),
        "interfaces": (),
        "roles": ("prefill", "decode"),
        "engines": ("mlx", "vllm"),
        "memory_total": 100,
        "memory_free": 50,
    }
    return NodeRecord(peer_id=peer_id, instances=instances, **(fields | changes))


def instance_record(id: str, engine: str = "mlx", **changes: Any) -> InstanceRecord:
    fields: dict[str, Any] = {
        "model": "acme/Tiny",
        "base_model": "tiny",
        "roles": ("prefill", "decode"),
        "state": "ready",
        "fingerprint": "f",
        "prefill_tokens_per_s": 100.0,
        "kv_bytes_per_token": 1000,
    }
    return InstanceRecord(id=id, engine=engine, **(fields | changes))  # pyright: ignore[reportArgumentType]
