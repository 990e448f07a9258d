"""How many drafts are accepted: policies x budgets x gammas x workloads on one model, in the embedded engine."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

from vegas_bench.inspect.recorder import SelectionTrace
from vegas_bench.inspect.trace import IterationTrace
from vegas_bench.inspect.trace import summarise as summarise_trace
from vegas_bench.measure.progress import BatchProgress, Watch, unwatched
from vegas_bench.measure.variants import Variant
from vegas_bench.results.journal import Journal
from vegas_bench.results.results import AcceptanceRow, ResultError
from vegas_bench.workloads import WorkloadPrompt
from vegas_spec.config import ConfigError
from vegas_spec.engine.llm import LLM
from vegas_spec.engine.outputs import RequestOutput
from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.policies import policy_class


def measure_acceptance(
    llm: LLM,
    variants: Sequence[Variant],
    workloads: Mapping[str, Sequence[WorkloadPrompt]],
    params: SamplingParams,
    journal: Journal,
    *,
    batch: int = 8,
    trace_every: int = 0,
    watch: Watch = unwatched,
) -> list[AcceptanceRow]:
    """Complete every prompt with every variant; a prompt is read once, for all of them.

    Parameters
    ----------
    llm : LLM
        The model.
    variants : sequence of Variant
        What to compare.
    workloads : mapping
        Prompts by the workload's name.
    params : SamplingParams
        For all completions.
    journal : Journal
        Takes every row as it comes; what it has already is not measured again.
    batch : int
        Prompts that run at once; at most the engine's ``max_num_seqs``.
    trace_every : int
        Look at the selection of every so many-th iteration, for recall and overlap; 0 for none. It takes time: of a run
        with it, times are not the policy's.
    watch : callable, optional
        See `vegas_bench.measure.progress.Watch`; the parts are prompts.

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
        if not policy_class(variant.config.policy).speculates:
            raise ConfigError(f"policy {variant.label} drafts nothing, so it has no acceptance; leave it out")
    engines = [(variant, llm.with_config(**variant.config.to_dict())) for variant in variants]
    total = len(variants) * sum(map(len, workloads.values()))
    done = 0
    for workload, prompts in workloads.items():
        for begin in range(0, len(prompts), batch):
            chosen = prompts[begin : begin + batch]
            missing = [
                (variant, engine, [each for each in chosen if _key(workload, variant, each) not in journal])
                for variant, engine in engines
            ]
            done += len(engines) * len(chosen) - sum(len(left) for _, _, left in missing)
            wanted = [each for each in chosen if any(each in left for _, _, left in missing)]
            watch(f"{workload}: reading {len(wanted)} prompts", done, total)
            read = dict(zip((each.name for each in wanted), llm.prefill([each.prompt for each in wanted]), strict=True))
            for variant, engine, left in missing:
                progress = BatchProgress(len(left), params.max_tokens or 1)
                trace = SelectionTrace(positions=False, every=trace_every) if trace_every else None
                for update in engine.stream([read[each.name] for each in left], params, trace=trace):
                    progress.see(update)
                    if update.output.finished:
                        prompt = left[int(update.output.request_id)]
                        looked = trace.of(update.output.request_id) if trace else []
                        row = acceptance_row(variant, workload, prompt, update.output, looked)
                        journal.append(_key(workload, variant, prompt), dataclasses.asdict(row))
                    watch(f"{workload}: {variant.key}", done + progress.done, total)
                done += len(left)
            read.clear()  # before the next prompts are read: their keys and values take as much again
    return [
        journal.row(_key(workload, variant, prompt), AcceptanceRow)
        for workload, prompts in workloads.items()
        for variant in variants
        for prompt in prompts
    ]


def acceptance_row(
    variant: Variant,
    workload: str,
    prompt: WorkloadPrompt,
    output: RequestOutput,
    iterations: Sequence[IterationTrace] = (),
) -> AcceptanceRow:
    """Take the figures of a finished completion, and of what was seen of its selections.

    Raises
    ------
    ResultError
        If the model broke.

    """
    if output.error:
        raise ResultError(f"{variant.key}, prompt {prompt.name!r}: {output.error}")
    stats, completion, seen = output.stats, output.outputs[0], summarise_trace(iterations)
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
        recall=seen.recall if seen.iterations else None,
        overlap_by_distance=seen.overlap_by_distance if seen.iterations else None,
        correct=prompt.correct(completion.text),
        seconds={**stats.seconds, "selection": stats.selection_seconds},
    )


def _key(workload: str, variant: Variant, prompt: WorkloadPrompt) -> str:
    # The tokens, too: a file of prompts may have changed since the run that is gone on with.
    tokens = hashlib.sha256(repr(prompt.prompt["prompt_token_ids"]).encode()).hexdigest()[:12]
    return f"{workload} | {variant.key} | {prompt.name} | {tokens}"
