"""What a scheduler decides about drafting: in which steps, for which requests; and how often, for the metrics."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from vegas_spec.config import ConfigError, invalid
from vegas_spec.pacing.fall_back import FallBack
from vegas_spec.pacing.online import Online
from vegas_spec.vllm.scheduler.cost import estimate_cost
from vegas_spec.vllm.start import banner, options

clock = time.perf_counter
"""What steps are timed by."""

REQUEST_KEY = "vegas"
"""Of ``SamplingParams.extra_args``, ``vllm_xargs`` in a request to the server: false for a request without drafts."""

# Counts, as `Drafting.take_counts` names them.
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


class Drafting:
    """One scheduler's decisions.

    A request that opted out keeps its place in the batch, and the draft loop, whose steps run for a whole batch, runs
    its row along; but its drafts are dropped before they are scheduled, so that it never verifies more than its one
    token. Where all requests of a step opted out, nothing is drafted.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.gamma = vllm_config.num_speculative_tokens
        self.alone = vllm_config.parallel_config.data_parallel_size == 1
        """Whether no other rank has to draft as many."""
        self.rule: FallBack | None = None
        self.online: Online | None = None
        """In the place of the rule, where the engine adapts."""
        self.length = self.gamma
        """Drafts per request that the latest step with decoding requests asked for."""
        self.counts: Counter[str] = Counter()
        config = options.vegas_config(vllm_config)
        if config.adaptive:
            lengths = options.draft_lengths(vllm_config)
            self.online = Online(config, estimate_cost(vllm_config), lengths)
            banner.announce_online(lengths)
        elif options.falls_back(vllm_config):
            self.rule = FallBack(config, estimate_cost(vllm_config))
            banner.announce_fall_back(self.rule, vllm_config.scheduler_config.max_num_seqs)

    @staticmethod
    def of(scheduler: Any) -> Drafting | None:
        """The scheduler's own, made when first asked for; None for schedulers of other engines."""
        if not hasattr(scheduler, "_vegas_drafting"):
            config = scheduler.vllm_config
            scheduler._vegas_drafting = Drafting(config) if options.is_vegas(config) else None
        found: Drafting | None = scheduler._vegas_drafting
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
        if contexts and not drafting and self.alone:
            scheduler_output.num_spec_tokens_to_schedule = 0
        elif self.online is not None:
            length = self.online.decide(contexts, drafting, prompts, clock())
            scheduler_output.num_spec_tokens_to_schedule = length
        elif self.rule is not None:
            drafts = self.rule.decide(contexts, len(drafting))
            scheduler_output.num_spec_tokens_to_schedule = self.gamma if drafts else 0
        if self.online is not None:
            # After the decision, which takes in what their last verifications said of the text.
            for request_id in scheduler_output.finished_req_ids:
                self.online.forget(request_id)
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
        if self.online is not None:
            self.online.observe(request_id, drafted, accepted)
        elif self.rule is not None:
            self.rule.observe(accepted)

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last time, and how it stands."""
        taken = {**self.counts, DRAFTING: int(self.length > 0), LENGTH: self.length}
        self.counts.clear()
        return taken
