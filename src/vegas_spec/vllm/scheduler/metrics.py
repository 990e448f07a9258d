"""Prometheus metrics of drafting, ``vegas:*``, where vLLM has its own: `/metrics` of the server."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from vegas_spec.vllm.scheduler.cost import drafted_share
from vegas_spec.vllm.scheduler.draft_scheduler import (
    DRAFTING,
    LENGTH,
    STEPS_DRAFTING,
    STEPS_PLAIN,
    TO_DRAFTING,
    TO_PLAIN,
)

PREFIX = "vegas:"


class VegasStatLogger(AggregateStatLoggerBase):  # type: ignore[misc]
    """Records what the schedulers of one server count.

    Gauges of several processes are told by the latest of them, counters are added up, as vLLM's own are.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        forget_metrics()
        labels = ["model_name", "engine"]
        model = vllm_config.model_config.served_model_name
        self.labels = {index: (model, str(index)) for index in engine_indexes}
        self.drafting = _gauge("drafting", "1 while the engine drafts, 0 while it decodes plainly.", labels)
        self.length = _gauge("num_speculative_tokens", "Drafts per request and step, at present.", labels)
        budget = _gauge("kv_budget", "Share of the longest context that a draft step reads.", labels)
        self.request_steps = Counter(
            f"{PREFIX}request_steps",
            "Steps of decoding requests, by whether the request drafted in it.",
            [*labels, "drafting"],
        )
        self.changes = Counter(
            f"{PREFIX}drafting_changes", "How often an engine gave drafting up, or took it up again.", [*labels, "to"]
        )
        for values in self.labels.values():
            budget.labels(*values).set(drafted_share(vllm_config))
            # Series that exist from the start: a rate over the first change is none without the zero before it.
            for drafting in ("true", "false"):
                self.request_steps.labels(*values, drafting)
            for to in ("drafting", "plain"):
                self.changes.labels(*values, to)

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """See `StatLoggerBase.record`."""
        counts = None if scheduler_stats is None else scheduler_stats.running_lora_adapters
        if not counts:
            return
        values = self.labels[engine_idx]
        self.drafting.labels(*values).set(counts[DRAFTING])
        self.length.labels(*values).set(counts[LENGTH])
        self.request_steps.labels(*values, "true").inc(counts.get(STEPS_DRAFTING, 0))
        self.request_steps.labels(*values, "false").inc(counts.get(STEPS_PLAIN, 0))
        self.changes.labels(*values, "drafting").inc(counts.get(TO_DRAFTING, 0))
        self.changes.labels(*values, "plain").inc(counts.get(TO_PLAIN, 0))

    def log_engine_initialized(self) -> None:
        """Nothing to log: the speculator says what is on."""


def _gauge(name: str, documentation: str, labels: list[str]) -> Gauge:
    return Gauge(f"{PREFIX}{name}", documentation, labels, multiprocess_mode="mostrecent")


def forget_metrics() -> None:
    """Make room for the metrics of another engine in this process, as vLLM does with its own."""
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(PREFIX):
            REGISTRY.unregister(collector)
