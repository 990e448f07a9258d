"""How many drafts are accepted: policies x budgets x gammas x workloads on one model, in the embedded engine."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vegas_spec.config import ConfigError
from vegas_spec.engine.llm import LLM
from vegas_spec.engine.outputs import RequestOutput
from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.eval.intervals import Interval, bootstrap_mean
from vegas_spec.eval.journal import Journal
from vegas_spec.eval.progress import BatchProgress, Watch, unwatched
from vegas_spec.eval.results import AcceptanceRow, ResultError
from vegas_spec.eval.variants import Variant
from vegas_spec.eval.workloads import WorkloadPrompt


def measure_acceptance(
    llm: LLM,
    variants: Sequence[Variant],
    workloads: Mapping[str, Sequence[WorkloadPrompt]],
    params: SamplingParams,
    journal: Journal,
    watch: Watch = unwatched,
) -> list[AcceptanceRow]:
    """Complete every prompt with every variant.

    Parameters
    ----------
    llm : LLM
        The model; its ``max_num_seqs`` is how many prompts run at once.
    variants : sequence of Variant
        What to compare.
    workloads : mapping
        Prompts by the workload's name.
    params : SamplingParams
        For all completions.
    journal : Journal
        Takes every row as it comes; what it has already is not measured again.
    watch : callable, optional
        See `vegas_spec.eval.progress.Watch`; the parts are prompts.

    Returns
    -------
    list of AcceptanceRow
        By workload, variant and prompt, in their order.

    Raises
    ------
    ConfigError
        If a variant cannot run on this model, before anything is measured.
    ResultError
        If the model's output cannot be used.

    """
    for variant in variants:
        if variant.config.policy == "full":
            raise ConfigError("policy full drafts nothing, so it has no acceptance; leave it out")
    engines = [(variant, llm.with_config(**variant.config.to_dict())) for variant in variants]
    total = len(variants) * sum(map(len, workloads.values()))
    done = 0.0
    for workload, prompts in workloads.items():
        for variant, engine in engines:
            keys = [_key(workload, variant, prompt) for prompt in prompts]
            missing = [at for at, key in enumerate(keys) if key not in journal]
            done += len(prompts) - len(missing)
            label = f"{workload}: {variant.key}"
            watch(label, done, total)
            progress = BatchProgress(len(missing), params.max_tokens or 1)
            for update in engine.stream([prompts[at].prompt for at in missing], params):
                progress.see(update)
                if update.output.finished:
                    at = missing[int(update.output.request_id)]
                    row = acceptance_row(variant, workload, prompts[at], update.output)
                    journal.append(keys[at], dataclasses.asdict(row))
                watch(label, done + progress.done, total)
            done += len(missing)
    return [
        AcceptanceRow(**journal[_key(workload, variant, prompt)])
        for workload, prompts in workloads.items()
        for variant in variants
        for prompt in prompts
    ]


def acceptance_row(variant: Variant, workload: str, prompt: WorkloadPrompt, output: RequestOutput) -> AcceptanceRow:
    """Take the figures of a finished completion.

    Raises
    ------
    ResultError
        If the model broke.

    """
    if output.error:
        raise ResultError(f"{variant.key}, prompt {prompt.name!r}: {output.error}")
    stats, completion = output.stats, output.outputs[0]
    return AcceptanceRow(
        policy=variant.label,
        config=variant.config.to_dict(),
        workload=workload,
        kind=prompt.kind,
        prompt=prompt.name,
        prompt_tokens=len(output.prompt_token_ids),
        generated_tokens=len(completion.token_ids),
        iterations=stats.iterations,
        drafts=stats.drafts,
        accepted_per_iteration=stats.accepted_per_draft,
        accepted_per_position=stats.accepted_per_position,
        proposed_per_position=stats.drafted_per_position,
        draft_kv_share=stats.draft_kv_share,
        correct=prompt.correct(completion.text),
        seconds={**stats.seconds, "selection": stats.selection_seconds},
    )


@dataclass(frozen=True)
class AcceptanceSummary:
    """One setting's rows together.

    Attributes
    ----------
    accepted : Interval
        Mean over prompts of accepted drafts per iteration, with its 95 % bootstrap interval.
    lowest, highest : float
        The hardest and the easiest prompt.
    by_position : list of float
        Share of the drafts at distance 1, 2, ... that were accepted, over all prompts together.
    draft_kv_share, recall, correct : float or None
        Means over prompts, where known.

    """

    policy: str
    num_speculative_tokens: int
    kv_budget: float
    prompts: int
    accepted: Interval
    lowest: float
    highest: float
    by_position: list[float]
    draft_kv_share: float
    recall: float | None
    correct: float | None


def summarise(rows: Sequence[AcceptanceRow]) -> list[AcceptanceSummary]:
    """Sum rows up by policy, gamma and budget, in the order in which they come; prompts without drafts do not count."""
    settings: dict[tuple[str, int, float], list[AcceptanceRow]] = {}
    for row in rows:
        if row.drafts:
            key = (row.policy, row.config["num_speculative_tokens"], row.config["kv_budget"])
            settings.setdefault(key, []).append(row)
    return [_summary(*key, group) for key, group in settings.items()]


def _summary(policy: str, gamma: int, budget: float, rows: list[AcceptanceRow]) -> AcceptanceSummary:
    accepted = [row.accepted_per_iteration for row in rows]
    recorded = [row for row in rows if row.proposed_per_position]
    counts = [
        (sum(row.accepted_per_position[at] for row in recorded), sum(row.proposed_per_position[at] for row in recorded))
        for at in range(gamma)
    ]
    return AcceptanceSummary(
        policy=policy,
        num_speculative_tokens=gamma,
        kv_budget=budget,
        prompts=len(rows),
        accepted=bootstrap_mean(accepted),
        lowest=min(accepted),
        highest=max(accepted),
        by_position=[hits / tries if tries else 0.0 for hits, tries in counts],
        draft_kv_share=sum(row.draft_kv_share for row in rows) / len(rows),
        recall=_mean([row.recall for row in rows]),
        correct=_mean([row.correct for row in rows]),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _key(workload: str, variant: Variant, prompt: WorkloadPrompt) -> str:
    # The tokens, too: a file of prompts may have changed since the run that is gone on with.
    tokens = hashlib.sha256(repr(prompt.prompt["prompt_token_ids"]).encode()).hexdigest()[:12]
    return f"{workload} | {variant.key} | {prompt.name} | {tokens}"
