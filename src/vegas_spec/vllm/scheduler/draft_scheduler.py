"""What a scheduler decides about drafting: in which steps, for which requests; and how often, for the metrics."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from vegas_spec.config import ConfigError, invalid
from vegas_spec.pacing.step_pacer import StepPacer
from vegas_spec.vllm.scheduler.cost import budget_in_memory, estimate_cost
from vegas_spec.vllm.start import banner, options

clock = time.perf_counter
"""What steps are timed by."""

REQUEST_KEY = "vegas"
"""Of ``SamplingParams.extra_args``, ``vllm_xargs`` in a request to the server: false for a request without drafts."""

# Counts, as `DraftScheduler.take_counts` names them.
DRAFTING, LENGTH = "drafting", "num_speculative_tokens"
STEPS_DRAFTING, STEPS_PLAIN = "request_steps_drafting", "request_steps_plain"
TO_DRAFTING, TO_PLAIN = "changes_to_drafting", "changes_to_plain"

# JSON's true and false arrive from the server as 1 and 0.
_WANTED = {True: True, False: False, "true": True, "false": False}


def wants_drafts(sampling_params: Any) -> bool:
    """Whether a request wants drafts; all do that do not say otherwise.

    Raises
    ------
    ConfigError
        If what it says is neither true nor false.

    """
    extra = getattr(sampling_params, "extra_args", None)
    if not extra or REQUEST_KEY not in extra:
        return True
    said = extra[REQUEST_KEY]
    try:
        return _WANTED[said]
    except (KeyError, TypeError):
        raise _unclear(said) from None


def _unclear(said: object) -> ConfigError:
    return invalid(f"{REQUEST_KEY!r} in extra_args (vllm_xargs in a request to the server)", "true or false", said)


class DraftScheduler:
    """One scheduler's decisions about drafting.

    A request that opted out keeps its place in the batch, and the draft loop, whose steps run for a whole batch, runs
    its row along; but its drafts are dropped before they are scheduled, so that it never verifies more than its one
    token. Where all requests of a step opted out, nothing is drafted.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.gamma = vllm_config.num_speculative_tokens
        self.alone = vllm_config.parallel_config.data_parallel_size == 1
        """Whether no other rank has to draft as many."""
        self.length = self.gamma
        """Drafts per request that the latest step with decoding requests asked for."""
        self.counts: Counter[str] = Counter()
        self.pacer: StepPacer | None = None
        """None where the number of drafts is fixed, or a schedule of the user's decides."""
        if options.is_paced(vllm_config):
            config, gammas = budget_in_memory(vllm_config), options.draft_lengths(vllm_config)
            self.pacer = StepPacer(config, estimate_cost(vllm_config), gammas)
            banner.announce_pacing(self.pacer, vllm_config.scheduler_config.max_num_seqs)

    @staticmethod
    def of(scheduler: Any) -> DraftScheduler | None:
        """The scheduler's own, made when first asked for; None for schedulers of other engines."""
        if not hasattr(scheduler, "_vegas"):
            config = scheduler.vllm_config
            scheduler._vegas = DraftScheduler(config) if options.is_vegas(config) else None
        found: DraftScheduler | None = scheduler._vegas
        return found

    def drop_drafts(self, running: list[Any]) -> None:
        """Before a step is scheduled: forget the drafts of requests that want none."""
        for request in running:
            if request.spec_token_ids and not wants_drafts(request.sampling_params):
                request.spec_token_ids = []

    def decide(self, scheduler: Any, scheduler_output: Any) -> None:
        """Once a step is scheduled: how many drafts follow it."""
        contexts, drafting, prompts = [], [], False
        requests, longest = scheduler.requests, self.gamma + 1
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            request = requests[request_id]
            computed, prompt = request.num_computed_tokens, request.num_prompt_tokens
            prompts = prompts or scheduled > longest or computed < prompt
            if computed + scheduled >= prompt:
                contexts.append(computed + scheduled)
                if wants_drafts(request.sampling_params):
                    drafting.append(request_id)
        if self.pacer is not None:
            scheduler_output.num_spec_tokens_to_schedule = self.pacer.decide(contexts, drafting, prompts, clock())
            # After the decision, which takes in what their last verifications said of the text.
            for request_id in scheduler_output.finished_req_ids:
                self.pacer.forget(request_id)
        if contexts and not drafting and self.alone:
            scheduler_output.num_spec_tokens_to_schedule = 0
        if contexts:
            self.count(scheduler_output.num_spec_tokens_to_schedule, len(drafting), len(contexts))

    def count(self, length: int, drafting: int, decoding: int) -> None:
        """Take note of a step with `decoding` requests, `drafting` of which want the `length` drafts."""
        if bool(length) != bool(self.length):
            self.counts[TO_DRAFTING if length else TO_PLAIN] += 1
        self.length = length
        drafting = drafting if length else 0
        self.counts[STEPS_DRAFTING] += drafting
        self.counts[STEPS_PLAIN] += decoding - drafting

    def observe(self, request_id: str, drafted: int, accepted: int) -> None:
        """Take note of one request's verification."""
        if self.pacer is not None:
            self.pacer.observe(request_id, drafted, accepted)

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last time, and how it stands."""
        taken = {**self.counts, DRAFTING: int(self.length > 0), LENGTH: self.length}
        self.counts.clear()
        return taken
