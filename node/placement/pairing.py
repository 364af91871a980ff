"""Finding instances in the view, and whether one can prefill for another. Pure."""

from __future__ import annotations

from node.membership.view import ClusterView
from protocols.gossip import InstanceRecord, NodeRecord
from protocols.placement import Refused

__all__ = ["find_instance", "mismatch"]


def find_instance(
    view: ClusterView, instance_id: str
) -> tuple[NodeRecord, InstanceRecord] | Refused:
    """Return an instance and its node, or why nothing can be done with it."""
    for member in view.members:
        for instance in member.record.instances:
            if instance.id != instance_id or member.state == "gone":
                continue
            if member.state == "alive":
                return member.record, instance
            return Refused(
                "unreachable",
                f"{member.record.host}, which has the instance {instance_id}, does not answer",
                "see `baton status`",
            )
    return Refused(
        "unknown_instance",
        f"there is no instance {instance_id}",
        "`GET /v1/instances` lists those that there are",
    )


def mismatch(prefill: InstanceRecord, decode: InstanceRecord) -> str:
    """Return why one instance cannot prefill for another; empty if it can, as far as is known."""
    if prefill.id == decode.id:
        return f"{decode.id} cannot prefill for itself"
    for instance, role in ((prefill, "prefill"), (decode, "decode")):
        if role not in instance.roles:
            return f"{instance.id} does not {role}"
    if prefill.base_model != decode.base_model:
        return (
            f"{prefill.id} has {prefill.model} and {decode.id} has {decode.model}, which are "
            "different models"
        )
    prints = prefill.fingerprint, decode.fingerprint
    # Before it is loaded, an instance has none.
    if all(prints) and prints[0] != prints[1]:
        return f"the caches of {prefill.id} and {decode.id} have different layouts"
    return ""
