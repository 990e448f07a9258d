"""Decoding speed of the embedded engine: a batch of prompts, timed while all of them decode."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from vegas_bench.measure.decoding import Decoding, steady_speed
from vegas_bench.measure.progress import BatchProgress
from vegas_bench.results.results import ResultError
from vegas_spec.engine.llm import LLM
from vegas_spec.engine.outputs import RequestStats
from vegas_spec.engine.prompts import Prompt
from vegas_spec.engine.sampling_params import SamplingParams

SELECTION = "selection"
"""Time of scoring and choosing, which is a part of the phases' times."""


def decode_run(
    engine: LLM,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    watch: Callable[[float], None] = lambda share: None,
) -> Decoding:
    """Complete prompts as one batch and time it from the first drafted iteration to the first request's end.

    Parameters
    ----------
    engine : LLM
        Its ``max_num_seqs`` must be at least the number of prompts.
    prompts : sequence
        What to continue.
    params : SamplingParams
        For all; ``max_tokens`` must leave two iterations after the first.
    watch : callable, optional
        Told which share of the run is done.

    Raises
    ------
    ResultError
        If the outputs are too short to time, or the model broke.

    """
    marks: list[tuple[float, int, list[dict[str, float]]]] = []
    stats: dict[str, RequestStats] = {}
    lengths: dict[str, int] = {}
    ended = 0
    seen = 0
    progress = BatchProgress(len(prompts), params.max_tokens or 1)
    for update in engine.stream(prompts, params):
        progress.see(update)
        watch(progress.done / len(prompts))
        output = update.output
        if output.error:
            raise ResultError(f"prompt {output.request_id}: {output.error}")
        if not update.new_tokens:
            continue
        stats[output.request_id] = output.stats
        lengths[output.request_id] = len(output.outputs[0].token_ids)
        ended += output.finished
        seen += 1
        # An iteration of the whole batch is one update of each request.
        if not ended and len(stats) == len(prompts) and seen % len(prompts) == 0:
            marks.append((time.perf_counter(), sum(lengths.values()), [*map(_spent, stats.values())]))
    if len(marks) < 3:
        raise ResultError(
            f"outputs of {params.max_tokens} tokens are too short to time: fewer than two iterations after the first "
            "had all requests in them; raise --max-tokens"
        )
    iterations = len(marks) - 1
    everyone = list(stats.values())
    gamma = everyone[0].num_speculative_tokens
    tried = [sum(each.drafted_per_position[at] for each in everyone) for at in range(gamma)]
    held = [sum(each.accepted_per_position[at] for each in everyone) for at in range(gamma)]
    dense = sum(each.draft_kv_entries_dense for each in everyone)
    milliseconds = milliseconds_per_iteration([spent for _, _, spent in marks])
    selection = milliseconds.pop(SELECTION)
    return Decoding(
        tokens_per_second=[steady_speed([(moment, tokens) for moment, tokens, _ in marks])],
        accepted_per_iteration=(marks[-1][1] - marks[0][1]) / (iterations * len(prompts)) - 1,
        accepted_per_position=[hits / tries if tries else 0.0 for hits, tries in zip(held, tried, strict=True)],
        milliseconds=milliseconds,
        selection_milliseconds=selection,
        draft_kv_share=sum(each.draft_kv_entries for each in everyone) / dense if dense else 0.0,
    )


def milliseconds_per_iteration(spent: Sequence[Sequence[dict[str, float]]]) -> dict[str, float]:
    """Time per iteration by phase, from what each request had spent at each mark.

    A request whose output nears its limit drafts fewer steps than others of its batch: an iteration took what the
    request that was in it longest spent.
    """
    return {
        phase: 1e3
        * sum(
            max(late[phase] - early[phase] for early, late in zip(before, after, strict=True))
            for before, after in itertools.pairwise(spent)
        )
        / (len(spent) - 1)
        for phase in spent[0][0]
    }


def _spent(stats: RequestStats) -> dict[str, float]:
    phases = {phase: seconds for phase, seconds in stats.seconds.items() if phase != "prefill"}
    return {**phases, SELECTION: stats.selection_seconds}
