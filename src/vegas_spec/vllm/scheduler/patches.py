"""The replacements in vLLM's scheduler and around it: which requests draft, and what is counted of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from vegas_spec.config import ConfigError
from vegas_spec.vllm.scheduler.draft_scheduler import DraftScheduler, wants_drafts
from vegas_spec.vllm.start import options


def schedule(original: Callable[..., Any]) -> Callable[..., Any]:
    """Drop the drafts of requests that want none."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = DraftScheduler.of(self)
        if ours is not None:
            ours.drop_drafts(self.running)
        return original(self, *args, **kwargs)

    return wrapped


def update_after_schedule(original: Callable[..., Any]) -> Callable[..., Any]:
    """Ask for as many drafts as gain, and for none where nobody wants them."""

    def wrapped(self: Any, scheduler_output: Any) -> Any:
        ours = DraftScheduler.of(self)
        if ours is not None:
            ours.decide(self, scheduler_output)
        return original(self, scheduler_output)

    return wrapped


def spec_decoding_stats(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let the pacer see what was accepted."""

    def wrapped(self: Any, stats: Any, **kwargs: Any) -> Any:
        ours = DraftScheduler.of(self)
        if ours is not None:
            ours.observe(kwargs["request_id"], kwargs["num_draft_tokens"], kwargs["num_accepted_tokens"])
        return original(self, stats, **kwargs)

    return wrapped


def make_stats(original: Callable[..., Any]) -> Callable[..., Any]:
    """Send our counts along with vLLM's.

    Its message to the process that serves metrics has no field for others. Adapters are refused with Vegas, so the
    field for their counts is free.
    """

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        stats = original(self, *args, **kwargs)
        ours = DraftScheduler.of(self)
        if stats is not None and ours is not None:
            stats.running_lora_adapters = ours.take_counts()
        return stats

    return wrapped


def stat_loggers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have our metrics recorded beside vLLM's."""

    def wrapped(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        if options.is_vegas(vllm_config):
            from vegas_spec.vllm.scheduler.metrics import VegasStatLogger

            self.stat_loggers.append(VegasStatLogger(vllm_config, self.engine_indexes))

    return wrapped


def validate_request(original: Callable[..., Any]) -> Callable[..., Any]:
    """Say what is wrong with a request's wish for drafts; allow what vLLM's V1 runner could not do with drafts.

    The V2 runner applies ``min_p`` and ``logit_bias`` to every verified row, by the same code as without drafts.
    """

    def wrapped(self: Any, speculative_config: Any, *args: Any, **kwargs: Any) -> Any:
        if not options.is_vegas_speculation(speculative_config):
            return original(self, speculative_config, *args, **kwargs)
        try:
            wants_drafts(self)
        except ConfigError as error:
            from vllm.exceptions import VLLMValidationError

            # The server answers this one with "bad request", any other with "internal error".
            raise VLLMValidationError(str(error)) from error
        other = copy.copy(self)
        other.min_p, other.logit_bias = 0.0, None
        return original(other, speculative_config, *args, **kwargs)

    return wrapped
