"""Rows of result files, by kind; a row is one measurement."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

EngineName = Literal["embedded", "vllm"]
Speeds = Annotated[list[Annotated[float, Meta(gt=0)]], Meta(min_length=1)]
"""Figures that reports divide by."""


@dataclass(frozen=True, kw_only=True)
class AcceptanceRow:
    """One prompt completed with one policy.

    Attributes
    ----------
    policy : str
        Label of the setting, unique within a file together with `num_speculative_tokens` and `kv_budget` of `config`.
    config : dict
        All options of `VegasConfig`.
    workload, kind, prompt : str
        Name of the workload; what sort of text this is; name of the prompt.
    iterations, drafts : int
        Verifications after the prompt; how many of them had drafts to judge.
    accepted_per_iteration : float
        Accepted drafts per iteration that had drafts.
    accepted_per_position, proposed_per_position : list of int
        How often the draft at distance 1, 2, ... was accepted (with all before it), and how often there was one; the
        latter is empty where it was not recorded.
    draft_kv_share : float
        Share of the cache that draft steps really read.
    recall : float, optional
        Share of each draft step's own best positions, those that an oracle reads, that the policy had selected.
    overlap_by_distance : list of float, optional
        Share that the best positions of two verified rows at distance 1, 2, ... have in common.
    correct : float, optional
        Share of the expected answers that the completion contains, where the workload knows them.
    seconds : dict
        Wall time by phase; prompts of one batch share it.

    """

    policy: str
    config: dict[str, Any]
    workload: str
    kind: str
    prompt: str
    prompt_tokens: Annotated[int, Meta(ge=1)]
    generated_tokens: int
    iterations: int
    drafts: int
    accepted_per_iteration: float
    accepted_per_position: list[int]
    proposed_per_position: list[int]
    draft_kv_share: float
    recall: float | None = None
    overlap_by_distance: list[float] | None = None
    correct: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ThroughputRow:
    """Decoding speed of one side at one context, batch and temperature.

    Attributes
    ----------
    policy : str
        Label of the side; the baseline, plain decoding (in vLLM: stock vLLM), is called ``full``.
    config : dict
        All options of `VegasConfig`, or what else the side ran with; empty for stock vLLM.
    context, batch : int
        Prompt tokens per request; requests.
    tokens_per_second : list of float
        Of the whole batch while decoding, one figure per repeat.
    accepted_per_iteration : float, optional
        None for the baseline.
    milliseconds : dict, optional
        Time per iteration by phase.
    selection_overhead : float, optional
        What scores and selection add to a verification, as a share of its time without them.
    predicted_speedup : float, optional
        Against the baseline, if reading weights and cache were all that takes time, with the acceptance that was
        measured: `vegas_spec.pacing.costs.CostModel` without overheads.

    """

    policy: str
    config: dict[str, Any]
    engine: EngineName
    context: int
    batch: int
    temperature: float
    tokens_per_second: Speeds
    accepted_per_iteration: float | None = None
    accepted_per_position: list[float] | None = None
    milliseconds: dict[str, float] | None = None
    selection_overhead: float | None = None
    predicted_speedup: float | None = None

    @property
    def median(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.tokens_per_second)


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """The kernels of one layer at one shape: milliseconds by kernel, bytes of scratch memory by name."""

    case: str
    batch: int
    context: int
    milliseconds: dict[str, float]
    bytes: dict[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TuningRow:
    """One point of one step's curve.

    Attributes
    ----------
    step : int
        1: the budget by acceptance; 2: gamma by speed; 3: the budget again, by speed.
    varied : str
        ``kv_budget`` or ``num_speculative_tokens``.
    value : float
        Of what is varied.
    num_speculative_tokens, kv_budget
        The whole point.
    accepted_per_iteration, tokens_per_second : float, optional
        As measured; None where the cost model had ruled the point out.
    predicted_tokens_per_second : float, optional
        The cost model's, from the phases of the points that were measured before.
    chosen : bool
        Whether the step ended here.
    tied : bool
        Whether the repeats cannot tell it from the fastest of the step.

    """

    step: int
    varied: str
    value: float
    num_speculative_tokens: int
    kv_budget: float
    accepted_per_iteration: float | None = None
    tokens_per_second: Speeds | None = None
    predicted_tokens_per_second: float | None = None
    milliseconds: dict[str, float] | None = None
    chosen: bool = False
    tied: bool = False
