"""What a worker measures when asked to: where its time goes, and how much of the KV cache drafts read.

Two methods of vLLM's worker, reached by ``LLM.collective_rpc`` or the server's ``/collective_rpc``: ``vegas_record``
begins and ends it, ``vegas_figures`` tells what was measured since. Until then nothing of this is in the way of a step.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch

Mark = Any
"""A moment: seconds on a CPU, an event on a GPU."""

MOST_PENDING = 1024
"""Pairs of events that are kept before they are read; reading the oldest waits for nothing that still runs."""


class Figures:
    """Measures one worker while it is attached to its model runner.

    Phases: ``prompts`` (a forward pass with prompts in it), ``verify``, ``plain`` (a forward pass of one token per
    request), ``accept`` (sampling and the rest of a step) and ``draft``.
    """

    def __init__(self, runner: Any) -> None:
        self.runner, self.speculator = runner, runner.speculator
        self.device = runner.device
        self.on_gpu = self.device.type == "cuda"
        self.pending: list[tuple[str, Mark, Mark]] = []
        self.steps: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.kv_read = torch.zeros(2, dtype=torch.int64, device=self.device)
        """Entries that drafts read per full-attention layer and KV head, and those that dense ones would have read."""
        self.drafted: list[Mark] = []
        """Begin and end of the draft in the step that runs; empty if there is none."""
        self.attached = False

    def attach(self) -> None:
        """Begin to measure."""
        if not self.attached:
            self.runner.execute_model = self.timed_pass(self.runner.execute_model)
            self.runner.sample_tokens = self.timed_sampling(self.runner.sample_tokens)
            self.speculator.propose = self.timed_draft(self.speculator.propose)
            self.attached = True

    def detach(self) -> None:
        """Leave runner and speculator as they were."""
        if self.attached:
            del self.runner.execute_model, self.runner.sample_tokens, self.speculator.propose
            self.attached = False

    def mark(self) -> Mark:
        """Note this moment of the device's time."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def elapsed(self, start: Mark, end: Mark) -> float:
        """Seconds between two moments."""
        if not self.on_gpu:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def note(self, phase: str, start: Mark, end: Mark) -> None:
        """Remember a stretch of time, to be read later."""
        self.steps[phase] += 1
        self.pending.append((phase, start, end))
        if len(self.pending) > MOST_PENDING:
            self.read(MOST_PENDING // 2)

    def read(self, count: int) -> None:
        """Add up the oldest of what is pending."""
        for phase, start, end in self.pending[:count]:
            self.seconds[phase] += self.elapsed(start, end)
        del self.pending[:count]

    def timed_pass(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Time a forward pass."""

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            start = self.mark()
            result = original(scheduler_output, *args, **kwargs)
            if scheduler_output.total_num_scheduled_tokens:
                self.note(phase_of(scheduler_output), start, self.mark())
            return result

        return execute_model

    def timed_sampling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Time what follows a forward pass, but for the draft in it."""

        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            self.drafted.clear()
            start = self.mark()
            result = original(*args, **kwargs)
            if not self.drafted:
                self.note("accept", start, self.mark())
            else:
                begin, end = self.drafted
                self.note("accept", start, begin)
                self.note("draft", begin, end)
                self.pending.append(("accept", end, self.mark()))
            return result

        return sample_tokens

    def timed_draft(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Time a draft, and count what it reads."""

        def propose(input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any) -> Any:
            length = self.speculator.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
            start = self.mark()
            result = original(input_batch, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)
            if length and not kwargs.get("dummy_run"):
                self.drafted = [start, self.mark()]
                num_sampled, num_rejected = args[4], args[5]
                self.count_kv(input_batch, num_sampled, num_rejected, length)
            return result

        return propose

    def count_kv(self, input_batch: Any, num_sampled: torch.Tensor, num_rejected: torch.Tensor, length: int) -> None:
        """Add what the latest draft read, on the device."""
        n, speculator = input_batch.num_reqs, self.speculator
        verified = (input_batch.seq_lens[:n] - num_rejected[:n]).long()
        seen = verified[:, None] + torch.arange(1, length + 1, device=self.device)
        seen = seen.clamp(max=speculator.max_model_len) * (num_sampled[:n] > 0)[:, None]
        read = seen
        if speculator.draft_kv is not None:
            skipped = speculator.draft_kv.plan.prefix_lens[:n] - speculator.draft_kv.counts[:n]
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
            "scores_dropped": 0 if draft_kv is None else int(draft_kv.plan.dropped),
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
