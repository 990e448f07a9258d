"""What a worker measures when asked to: where its time goes, and how much of the KV cache drafts read.

Two methods of vLLM's worker, reached by ``LLM.collective_rpc`` or the server's ``/collective_rpc``: ``vegas_record``
begins and ends it, ``vegas_figures`` tells what was measured since. Until then nothing of this is in the way of a step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from vegas_spec.device_time import Moment, seconds_between
from vegas_spec.vllm.worker.timed_calls import TimedCalls

MOST_PENDING = 1024
"""Stretches of time that are kept before they are read; reading the oldest waits for nothing that still
runs. Chosen by hand."""


class Figures:
    """Measures one worker while it is attached to its model runner.

    Phases: ``prompts`` (a forward pass with prompts in it), ``verify``, ``plain`` (a forward pass of one token per
    request), ``accept`` (sampling and the rest of a step) and ``draft``.
    """

    def __init__(self, runner: Any) -> None:
        self.runner, self.speculator = runner, runner.speculator
        self.device = runner.device
        self.calls = TimedCalls(self.device)
        self.pending: list[tuple[str, Moment, Moment]] = []
        self.steps: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.kv_read = torch.zeros(2, dtype=torch.int64, device=self.device)
        """Entries that drafts read per full-attention layer and KV head, and those that dense ones would have read."""
        self.draft: tuple[Moment, Moment] | None = None
        """Of the step that runs; None if there is none."""
        self.attached = False

    def attach(self) -> None:
        """Begin to measure."""
        if not self.attached:
            self.calls.add(self.runner, "execute_model", self.note_pass)
            self.calls.add(self.runner, "sample_tokens", self.note_sampling)
            self.calls.add(self.speculator, "propose", self.note_draft)
            self.attached = True

    def detach(self) -> None:
        """Leave runner and speculator as they were."""
        self.calls.stop()
        self.attached = False

    def note_pass(self, start: Moment, end: Moment, call: Mapping[str, Any]) -> None:
        """Take note of a forward pass."""
        scheduler_output = call["scheduler_output"]
        if scheduler_output.total_num_scheduled_tokens:
            self.note(phase_of(scheduler_output), start, end)

    def note_sampling(self, start: Moment, end: Moment, _: Mapping[str, Any]) -> None:
        """Take note of what follows a forward pass, and of the draft in it apart."""
        if self.draft is None:
            self.note("accept", start, end)
            return
        begin, over = self.draft
        self.draft = None
        self.note("accept", start, begin)
        self.note("draft", begin, over)
        self.pending.append(("accept", over, end))

    def note_draft(self, start: Moment, end: Moment, call: Mapping[str, Any]) -> None:
        """Take note of a draft, and count what it read."""
        length = call["num_speculative_tokens"]
        length = self.speculator.num_speculative_steps if length is None else length
        if length and not call["dummy_run"]:
            self.draft = start, end
            self.count_kv(call["input_batch"], call["num_sampled"], call["num_rejected"], length)

    def note(self, phase: str, start: Moment, end: Moment) -> None:
        """Remember a stretch of time, to be read later."""
        self.steps[phase] += 1
        self.pending.append((phase, start, end))
        if len(self.pending) > MOST_PENDING:
            self.read(MOST_PENDING // 2)

    def read(self, count: int) -> None:
        """Add up the oldest of what is pending."""
        for phase, start, end in self.pending[:count]:
            self.seconds[phase] += seconds_between(start, end)
        del self.pending[:count]

    def count_kv(self, input_batch: Any, num_sampled: torch.Tensor, num_rejected: torch.Tensor, length: int) -> None:
        """Add what the latest draft read, on the device."""
        n, speculator = input_batch.num_reqs, self.speculator
        verified = (input_batch.seq_lens[:n] - num_rejected[:n]).long()
        seen = verified[:, None] + torch.arange(1, length + 1, device=self.device)
        seen = seen.clamp(max=speculator.max_model_len) * (num_sampled[:n] > 0)[:, None]
        read = seen
        if speculator.draft_kv is not None:
            skipped = speculator.draft_kv.prefix_lens[:n] - speculator.draft_kv.counts[:n]
            read = (seen - skipped[:, None]).clamp(min=0)
        self.kv_read += torch.stack([read.sum(), seen.sum()])

    def told(self) -> dict[str, Any]:
        """What was measured so far; waits for the device."""
        self.read(len(self.pending))
        read, dense = self.kv_read.tolist()
        draft_kv = self.speculator.draft_kv
        return {
            "recording": self.attached,
            "steps": dict(self.steps),
            "seconds": dict(self.seconds),
            "draft_kv_read": read,
            "draft_kv_dense": dense,
            "scores_dropped": 0 if draft_kv is None else draft_kv.dropped,
        }


def phase_of(scheduler_output: Any) -> str:
    """Name the forward pass of a step."""
    if scheduler_output.scheduled_spec_decode_tokens:
        rows = {request: 1 + len(drafts) for request, drafts in scheduler_output.scheduled_spec_decode_tokens.items()}
        scheduled = scheduler_output.num_scheduled_tokens
        return "verify" if all(count == rows.get(request, 1) for request, count in scheduled.items()) else "prompts"
    return "plain" if set(scheduler_output.num_scheduled_tokens.values()) == {1} else "prompts"


def vegas_record(worker: Any, wanted: bool = True) -> None:
    """Begin to measure from nothing, or end it; what was measured stays."""
    current: Figures | None = getattr(worker, "_vegas_figures", None)
    if current is not None:
        current.detach()
    if wanted:
        worker._vegas_figures = Figures(worker.model_runner)
        worker._vegas_figures.attach()


def vegas_figures(worker: Any) -> dict[str, Any] | None:
    """What one rank measured since ``vegas_record``; None if nothing was ever recorded."""
    current: Figures | None = getattr(worker, "_vegas_figures", None)
    return None if current is None else current.told()


def add_to_worker() -> None:
    """Make both methods of vLLM's worker."""
    from vllm.v1.worker.gpu_worker import Worker

    Worker.vegas_record = vegas_record
    Worker.vegas_figures = vegas_figures
