"""Putting together what `x_baton` says: how the prompt was read, and why that way."""

from __future__ import annotations

from node.prefill.planner import Candidate, Plan
from node.prefill.transfer import Transfer
from protocols.chat import PrefillReport, TokenCounts
from protocols.engine import Finished, GenerateStarted

__all__ = ["ReportBuilder"]


class ReportBuilder:
    """Collects what happens to one request.

    Args:
        received_at: when the decode node got it, in seconds of trio's clock.
    """

    def __init__(self, received_at: float) -> None:
        self._received_at = received_at
        self._first_token_at: float | None = None
        self._reason = ""
        self._attempts: list[tuple[Candidate, Transfer, int]] = []
        self._started: GenerateStarted | None = None

    @property
    def computed_here(self) -> int:
        """Tokens of the prompt that the decode engine computes."""
        return self._started.compute if self._started is not None else 0

    @property
    def read_before(self) -> int:
        """Tokens of the prompt that the decode engine had in its cache to begin with."""
        return self._started.injected + self._started.cached if self._started is not None else 0

    def planned(self, plan: Plan) -> None:
        """Note what was decided."""
        self._reason = plan.reason

    def attempted(self, candidate: Candidate, transfer: Transfer, start: int) -> None:
        """Note what became of a prefill elsewhere of the tokens from `start` on."""
        self._attempts.append((candidate, transfer, start))

    def generating(self, started: GenerateStarted) -> None:
        """Note what the decode engine makes of what was injected."""
        self._started = started

    def token(self, now: float) -> None:
        """Note a token; the first counts."""
        self._first_token_at = self._first_token_at or now

    def build(self, finished: Finished) -> PrefillReport:
        """Return the report of a finished request."""
        injected = self._started.injected if self._started is not None else 0
        cached_local = self._started.cached if self._started is not None else 0
        done = next(((c, t, s) for c, t, s in self._attempts if t.complete), None)
        remote = done is not None and self.computed_here <= 1
        candidate, transfer, _ = done or (self._attempts or [(None, Transfer(), 0)])[-1]
        cached_remote = sum(
            min(max(t.cached - s, 0), max(t.usable_end - s, 0)) for _, t, s in self._attempts
        )
        first = self._first_token_at or self._received_at
        return PrefillReport(
            prefill="remote" if remote else "local",
            reason=self._remote_reason() if remote else self._local_reason(injected),
            prefill_node=candidate.peer_id if candidate is not None and injected else None,
            tokens=TokenCounts(
                prompt=finished.prompt_tokens,
                cached_local=cached_local,
                cached_remote=cached_remote,
                computed=finished.prompt_tokens - cached_local - cached_remote,
            ),
            bytes=sum(t.sent_bytes for _, t, _ in self._attempts),
            raw_bytes=sum(t.raw_bytes for _, t, _ in self._attempts),
            route=(transfer.route or candidate.route) if candidate and injected else None,
            ttft_ms=(first - self._received_at) * 1e3,
            transfer_ms=sum(t.transfer_s for _, t, _ in self._attempts) * 1e3,
            hidden_ms=sum(t.hidden_s for _, t, _ in self._attempts) * 1e3,
            codec=transfer.codec,
            prefill_ms=(transfer.compute_s if remote else finished.prefill_s) * 1e3,
        )

    def _remote_reason(self) -> str:
        lost = [
            f"{transfer.route} was lost at token {transfer.usable_end}, the rest came another way"
            for _, transfer, _ in self._attempts
            if transfer.link_lost
        ]
        return "; ".join([self._reason, *lost])

    def _local_reason(self, injected: int) -> str:
        failures = [
            f"{candidate.peer_id}: {transfer.reason}"
            for candidate, transfer, _ in self._attempts
            if not transfer.complete
        ]
        if failures:
            kept = f"; {injected} tokens of it were used" if injected else ""
            return f"prefill elsewhere failed ({'; '.join(failures)}){kept}"
        if self._attempts:
            return f"some of the cache that arrived could not be used; {injected} tokens of it were"
        return self._reason
