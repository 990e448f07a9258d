"""Calls timed on a device whose clock the calls themselves move."""

from types import SimpleNamespace

import pytest
import torch

from vegas_bench.measure import iteration_times
from vegas_spec.vllm.worker import timed_calls
from vegas_spec.vllm.worker.figures import vegas_figures, vegas_record


class Speculator:
    num_speculative_steps = 3
    max_model_len = 100
    draft_kv = None

    def __init__(self, clock):
        self.clock = clock

    def propose(self, input_batch, num_rejected, num_sampled, num_speculative_tokens=None, dummy_run=False):
        """What is measured goes by these names, in whichever order they come."""
        self.clock.time += 2.0
        return "drafts"


class Runner:
    """A step takes 5 seconds and, before and after the 2 of its draft, one more each."""

    def __init__(self, clock, device, by_name=False):
        self.clock, self.device, self.speculator = clock, torch.device(device), Speculator(clock)
        self.by_name = by_name

    def execute_model(self, scheduler_output):
        self.clock.time += 5.0

    def sample_tokens(self, grammar_output):
        self.clock.time += 1.0
        batch = SimpleNamespace(num_reqs=1, seq_lens=torch.tensor([10]))
        accepted, rejected = torch.tensor([1]), torch.tensor([2])
        if self.by_name:
            drafts = self.speculator.propose(num_sampled=accepted, input_batch=batch, num_rejected=rejected)
        else:
            drafts = self.speculator.propose(batch, rejected, accepted)
        self.clock.time += 1.0
        return drafts

    def step(self):
        self.execute_model(
            scheduler_output=SimpleNamespace(
                total_num_scheduled_tokens=4,
                num_scheduled_tokens={"a": 4},
                scheduled_spec_decode_tokens={"a": [1, 2, 3]},
            )
        )
        assert self.sample_tokens(None) == "drafts"


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(time=0.0)
    monkeypatch.setattr(timed_calls, "now", lambda device: clock.time)
    return clock


def test_iterations(clock):
    """Medians of drafting and of the rest; a second reading begins anew."""
    runner = Runner(clock, "cuda")
    worker = SimpleNamespace(model_runner=runner)
    iteration_times.install(worker)
    for number in range(11):
        runner.step()
        clock.time += 1000.0 if number == 5 else 0.0
    assert iteration_times.read(worker) == {"draft": pytest.approx(2000), "verify": pytest.approx(7000)}
    for _ in range(9):
        runner.step()
    assert iteration_times.read(worker) is None


def test_what_has_no_drafts_or_no_gpu_is_not_timed(clock):
    for runner in (Runner(clock, "cpu"), SimpleNamespace(speculator=None), SimpleNamespace()):
        worker = SimpleNamespace(model_runner=runner)
        iteration_times.install(worker)
        for _ in range(11 * isinstance(runner, Runner)):
            runner.step()
        assert iteration_times.read(worker) is None


@pytest.mark.parametrize("by_name", [False, True])
def test_figures_beside_another_timing(clock, by_name):
    """Sums by phase; ending them leaves what was there before them."""
    runner = Runner(clock, "cpu", by_name)
    worker, others = SimpleNamespace(model_runner=runner), []
    timed_calls.TimedCalls(runner.device).add(runner.speculator, "propose", lambda *call: others.append(call[:2]))
    vegas_record(worker)
    for _ in range(4):
        runner.step()
    figures = vegas_figures(worker)
    assert figures["steps"] == {"verify": 4, "accept": 4, "draft": 4}
    assert figures["seconds"] == {"verify": 20.0, "accept": 8.0, "draft": 8.0}
    assert figures["draft_kv_dense"] == figures["draft_kv_read"] == 4 * (9 + 10 + 11)
    vegas_record(worker, False)
    assert "execute_model" not in vars(runner)
    runner.step()
    assert vegas_figures(worker) == {**figures, "recording": False}
    assert others == [(6.0 + 9 * step, 8.0 + 9 * step) for step in range(5)]
