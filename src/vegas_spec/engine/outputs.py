"""What generation returns, in vLLM's shape, and what it counted on the way."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

Origin = Literal["accepted", "corrected", "bonus"]
"""Where a token came from: an accepted draft, the correction of a rejected one, or the model's own token after all
drafts (of which there may have been none) were accepted."""

FinishReason = Literal["stop", "length", "error"]


@dataclass
class RequestStats:
    """Counters of one request.

    A KV entry is the key and value of one token in one layer and KV head. Seconds are wall time of the phases that the
    request took part in; requests of one batch share them.
    """

    num_speculative_tokens: int
    iterations: int = 0
    """Verifications after the prompt."""
    drafts: int = 0
    """Iterations that had at least one drafted token."""
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    """Tokens that iterations added to the output; what a verification gave past a stop is not among them."""
    drafted_per_position: list[int] = field(default_factory=list)
    """How often there was a draft at distance 1, 2, ..."""
    accepted_per_position: list[int] = field(default_factory=list)
    """How often it was accepted."""
    draft_kv_entries: int = 0
    """Entries that draft steps read."""
    draft_kv_entries_dense: int = 0
    """Entries that the same steps would have read with full attention."""
    verify_kv_entries: int = 0
    selection_seconds: float = 0.0
    """Of these phases together: what scoring entries and choosing among them took, whichever policy did it and in
    whichever phase (during verification, after it, in draft steps, and the upkeep of what a policy remembers). Copying
    the chosen entries is reading them, and not counted. With ``attention="kernels"`` the scoring inside the attention
    kernel is not seen: compare ``seconds["verify"]`` with that of policy ``dense``."""
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prefill", "draft", "verify", "accept", "select"), 0.0)
    )

    def __post_init__(self) -> None:
        self.drafted_per_position = self.drafted_per_position or [0] * self.num_speculative_tokens
        self.accepted_per_position = self.accepted_per_position or [0] * self.num_speculative_tokens

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens committed per iteration, the correction or bonus included."""
        return self.committed / self.iterations if self.iterations else 0.0

    @property
    def accepted_per_draft(self) -> float:
        """Accepted drafts per iteration that had drafts."""
        return self.accepted / self.drafts if self.drafts else 0.0

    @property
    def draft_kv_share(self) -> float:
        """Share of the cache that drafting really read, the minimum budget and the recent tokens included."""
        return self.draft_kv_entries / self.draft_kv_entries_dense if self.draft_kv_entries_dense else 0.0

    def count_iteration(self, drafted: int, accepted: int, committed: int) -> None:
        """Count one verification of `drafted` tokens, of which `accepted` were among the `committed`."""
        self.iterations += 1
        self.committed += committed
        self.drafts += drafted > 0
        self.drafted += drafted
        self.accepted += accepted
        for position in range(drafted):
            self.drafted_per_position[position] += 1
            self.accepted_per_position[position] += position < accepted

    def to_dict(self) -> dict[str, Any]:
        """All counters and derived figures, fit for JSON."""
        return {
            **dataclasses.asdict(self),
            "mean_acceptance_length": self.mean_acceptance_length,
            "accepted_per_draft": self.accepted_per_draft,
            "draft_kv_share": self.draft_kv_share,
        }


@dataclass
class CompletionOutput:
    """One generated sequence."""

    index: int
    text: str
    token_ids: list[int]
    token_origins: list[Origin]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token that ended the output; None for the end-of-sequence token or a limit."""


@dataclass
class RequestOutput:
    """What became of one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    stats: RequestStats
    finished: bool = False
    error: str | None = None
    """Why ``finish_reason`` is ``error``, in one sentence."""

    def to_dict(self) -> dict[str, Any]:
        """Everything but the prompt, fit for JSON."""
        return {
            "request_id": self.request_id,
            "prompt_tokens": len(self.prompt_token_ids),
            "outputs": [dataclasses.asdict(output) for output in self.outputs],
            "stats": self.stats.to_dict(),
            "error": self.error,
        }


@dataclass(frozen=True)
class Update:
    """One event of a running generation: a piece of prompt was read, or tokens were committed."""

    output: RequestOutput
    """The state of the request now; later updates change this same object."""
    prefilled: int
    """Prompt tokens read so far."""
    new_tokens: int
    """Tokens committed by this event; they are the last ones of ``output.outputs[0].token_ids``."""
