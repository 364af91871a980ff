"""Which engine answers a request, and which computes its prompt. Pure functions of the view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from node.base_models import base_model
from node.hardware import DECODE_ORDER
from node.membership.view import ClusterView
from protocols.gossip import InstanceRecord, InterfaceClass, NodeRecord

__all__ = [
    "DEFAULT_FLOOR",
    "DEFAULT_MARGIN",
    "DecodeChoice",
    "LinkState",
    "PrefillCandidate",
    "PrefillPolicy",
    "PrefillRanking",
    "Refusal",
    "choose_decode",
    "rank_prefill",
]

DEFAULT_FLOOR: Final = 256
DEFAULT_MARGIN: Final = 0.1

_PRESUMED_BYTES_PER_S: Final[dict[InterfaceClass, float]] = {
    "loopback": 500e6,
    "thunderbolt": 500e6,
    "ethernet": 100e6,
    "other": 30e6,
    "wifi": 20e6,
    "virtual": 30e6,
}
"""What a link is taken for until a transfer has measured it; low, so that it is not overrated."""

RefusalCode: TypeAlias = Literal[
    "unknown_model", "no_decode", "failed", "loading", "restarting", "excluded"
]


class Refusal(msgspec.Struct, frozen=True):
    """Nothing in the cluster can answer for the model now."""

    code: RefusalCode
    reason: str


class DecodeChoice(msgspec.Struct, frozen=True):
    """The instance that answers."""

    peer_id: str
    instance: InstanceRecord


class LinkState(msgspec.Struct, frozen=True):
    """The link to a peer that its next stream would take."""

    klass: InterfaceClass
    bytes_per_s: float | None = None
    """Measured; None before the first transfer."""

    @property
    def expected_bytes_per_s(self) -> float:
        """The measured rate, or what is presumed of the class."""
        return self.bytes_per_s or _PRESUMED_BYTES_PER_S[self.klass]


class PrefillPolicy(msgspec.Struct, frozen=True):
    """When a prompt is prefilled elsewhere."""

    mode: Literal["auto", "always", "never"] = "auto"
    """`always` leaves expected times out of account, but not the floor."""
    floor: int = DEFAULT_FLOOR
    """Uncached tokens under which a prompt is prefilled locally."""
    margin: float = DEFAULT_MARGIN
    """How much faster remote prefill has to be, as a fraction of the local time."""
    overlap: bool = True
    """Whether the cache travels while it is being computed."""


class PrefillCandidate(msgspec.Struct, frozen=True):
    """An instance that may compute the prompt."""

    peer_id: str
    instance: InstanceRecord
    expected_s: float
    """Until the cache is at the decode engine; infinite when its rate is unknown."""
    reason: str
    """Why it is here, for the answer's `x_baton`."""


class PrefillRanking(msgspec.Struct, frozen=True):
    """Where to prefill: the candidates in order, or locally for the reason given."""

    candidates: tuple[PrefillCandidate, ...]
    reason: str
    """Why the prompt is prefilled locally; empty when there are candidates."""
    local_s: float
    """Expected time of local prefill; infinite when its rate is unknown."""


def choose_decode(
    view: ClusterView, model: str, self_peer: str, excluded: frozenset[str] = frozenset()
) -> DecodeChoice | Refusal:
    """Choose the instance that answers for a model.

    Of those that are ready: the exact model before another form of it, MLX before vLLM, the least
    loaded, then this node.

    Args:
        view: the cluster; members under suspicion are left out.
        model: as the request names it.
        self_peer: the node that received the request.
        excluded: peer ids of nodes that have failed at this request already.
    """
    base = base_model(model)
    known = [
        each for each in view.instances() if each[1].model == model or each[1].base_model == base
    ]
    if not known:
        return Refusal("unknown_model", f"no node has the model {model}")
    decoders = [each for each in known if "decode" in each[1].roles]
    if not decoders:
        return Refusal("no_decode", f"{model} is loaded for prefill only")
    ready = [each for each in decoders if each[1].state == "ready"]
    if not ready:
        return _not_ready(model, [instance for _, instance in decoders])
    ready = [each for each in ready if each[0].peer_id not in excluded]
    if not ready:
        return Refusal("excluded", f"no other node that decodes {model} is ready")

    def order(candidate: tuple[NodeRecord, InstanceRecord]) -> tuple[object, ...]:
        node, instance = candidate
        engine, elsewhere = DECODE_ORDER[instance.engine], node.peer_id != self_peer
        other_form = instance.model != model
        return other_form, engine, instance.load, elsewhere, node.peer_id, instance.id

    node, instance = min(ready, key=order)
    return DecodeChoice(node.peer_id, instance)


def _not_ready(model: str, instances: Sequence[InstanceRecord]) -> Refusal:
    """Say of the instances, none of which is ready, what is true of the most hopeful one."""
    for state in ("loading", "restarting", "failed"):
        for instance in instances:
            if instance.state == state:
                detail = f" ({instance.reason})" if instance.reason else ""
                return Refusal(state, f"{model} is {state}{detail}")
    raise ValueError("one of them is ready")


def rank_prefill(
    view: ClusterView,
    decode: DecodeChoice,
    tokens: int,
    policy: PrefillPolicy,
    links: Mapping[str, LinkState],
) -> PrefillRanking:
    """Rank the instances that may prefill `tokens` for a decode instance, by expected time.

    Args:
        view: the cluster, as the decode instance's node sees it.
        decode: where the answer is going to be written; its links, if it has any, name the only
            instances that are considered.
        tokens: of the prompt, those whose cache the decode engine lacks.
        policy: what the user wants.
        links: by peer id, for the peers that are connected; the decode node itself needs none.
    """
    local_rate = decode.instance.prefill_tokens_per_s
    local_s = _seconds(tokens, local_rate)
    if policy.mode == "never":
        return PrefillRanking((), "remote prefill is switched off", local_s)
    if tokens < policy.floor:
        reason = f"prompt of {tokens} tokens is under --remote-prefill-min-tokens {policy.floor}"
        return PrefillRanking((), reason, local_s)
    candidates: list[PrefillCandidate] = []
    rejected: list[str] = []
    linked = decode.instance.links
    for node, instance in view.instances():
        if instance.id == decode.instance.id and node.peer_id == decode.peer_id:
            continue
        if linked and instance.id not in linked:
            continue
        why_not = _unfit(node, instance, decode, links)
        if why_not is not None:
            rejected += [why_not] if why_not else []
            continue
        own = node.peer_id == decode.peer_id
        link = LinkState("loopback") if own else links[node.peer_id]
        candidate = _candidate(node, instance, tokens, policy, link)
        if policy.mode == "auto" and candidate.expected_s >= local_s * (1 - policy.margin):
            rejected.append(_slower(node, instance, candidate.expected_s, local_s))
        else:
            candidates.append(candidate)
    if not candidates:
        which = " that it is linked to" if linked else ""
        none = f"no prefill instance of {decode.instance.model}{which} is ready"
        return PrefillRanking((), rejected[0] if rejected else none, local_s)
    candidates.sort(key=lambda each: (each.expected_s, each.peer_id, each.instance.id))
    return PrefillRanking(tuple(candidates), "", local_s)


def _unfit(
    node: NodeRecord,
    instance: InstanceRecord,
    decode: DecodeChoice,
    links: Mapping[str, LinkState],
) -> str | None:
    """Return None for an instance that could prefill, else why not; empty if that is no news."""
    wanted = decode.instance
    if "prefill" not in instance.roles or instance.base_model != wanted.base_model:
        return ""
    if instance.state != "ready":
        return f"the prefill instance of {instance.model} on {node.host} is {instance.state}"
    if not wanted.fingerprint or instance.fingerprint != wanted.fingerprint:
        return f"the cache of {instance.model} on {node.host} does not fit {wanted.model}"
    if node.peer_id != decode.peer_id and node.peer_id not in links:
        return f"{node.host} has a prefill instance of {instance.model} but is not connected"
    return None


def _candidate(
    node: NodeRecord,
    instance: InstanceRecord,
    tokens: int,
    policy: PrefillPolicy,
    link: LinkState,
) -> PrefillCandidate:
    compute_s = _seconds(tokens, instance.prefill_tokens_per_s)
    # Each request before this one is taken to be like it.
    queue_s = instance.load * compute_s if instance.load else 0.0
    transfer_s = tokens * instance.kv_bytes_per_token / link.expected_bytes_per_s
    shown_s = max(0.0, transfer_s - compute_s) if policy.overlap else transfer_s
    expected_s = queue_s + compute_s + shown_s
    reason = f"{instance.engine} on {node.host} is expected to need {expected_s:.2f} s"
    return PrefillCandidate(node.peer_id, instance, expected_s, reason)


def _seconds(tokens: int, tokens_per_s: float) -> float:
    return tokens / tokens_per_s if tokens_per_s > 0 else float("inf")


def _slower(node: NodeRecord, instance: InstanceRecord, expected_s: float, local_s: float) -> str:
    if expected_s == float("inf"):
        return f"the prefill rate of {instance.engine} on {node.host} is not known yet"
    return (
        f"local prefill is expected to be as fast: {local_s:.2f} s against {expected_s:.2f} s "
        f"by {instance.engine} on {node.host}"
    )
