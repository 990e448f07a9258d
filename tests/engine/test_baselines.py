"""Policies in the engine: what they read, what they remember, and that company changes nothing for a request."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from engine_cases import as_prompts, generated, greedy, make_llm, reference
from tiny_models import random_prompt
from torch import Tensor

from vegas_bench.inspect.recorder import SelectionTrace
from vegas_spec.config import POLICIES
from vegas_spec.policies import Room, Verified
from vegas_spec.policies.stream import StreamPolicy

PROMPTS = [random_prompt(length, seed=length) for length in (1, 70, 133, 40)]
READING = {"kv_budget": 0.25, "kv_budget_min": 32}
STATEFUL = ["quest", "specextend"]


def what_happened(output: Any) -> tuple[Any, ...]:
    stats = output.stats
    return (
        output.outputs[0].token_ids,
        stats.accepted_per_position,
        stats.drafted_per_position,
        stats.draft_kv_entries,
        stats.draft_kv_entries_dense,
    )


@pytest.mark.parametrize("policy", [*POLICIES, "toy_policy:EveryOther"])
def test_a_request_goes_alike_alone_in_a_batch_and_in_a_used_slot(policy: str) -> None:
    """Else a slot's next request would draft over what the last one left, or requests would meet in a batch."""
    prompts, params = as_prompts(PROMPTS), greedy(16)
    runs = {count: make_llm("gemma3_text", policy=policy, max_num_seqs=count, **READING) for count in (1, 3)}
    alone = [what_happened(runs[1].generate([prompt], params)[0]) for prompt in prompts]
    for llm in runs.values():
        assert [what_happened(output) for output in llm.generate(prompts, params)] == alone


class Released(StreamPolicy):
    """Notes which requests it was told to forget, run by run."""

    runs: ClassVar[list[Released]] = []

    def reserve(self, room: Room) -> None:
        self.runs.append(self)
        self.seen: set[int] = set()
        self.told: list[int] = []

    def select(self, verified: Verified) -> Tensor:
        self.seen |= set(verified.slots)
        return super().select(verified)

    def release(self, slot: int) -> None:
        self.seen.discard(slot)
        self.told.append(slot)


def test_a_policy_serves_one_run_and_is_told_which_requests_have_ended() -> None:
    Released.runs.clear()
    llm = make_llm("qwen3", policy=f"{__name__}:Released", max_num_seqs=2)
    llm.generate(as_prompts(PROMPTS), [greedy(count) for count in (3, 20, 9, 14)])
    [run] = Released.runs
    assert len(run.told) == 4
    assert set(run.told) == {0, 1}
    assert run.seen == set()
    llm.generate(as_prompts(PROMPTS[:1]), greedy(3))
    assert len(Released.runs) == 2


@pytest.mark.parametrize("policy", STATEFUL)
def test_two_runs_of_one_engine_do_not_share_what_is_remembered(policy: str) -> None:
    llm = make_llm("qwen3", policy=policy, **READING)
    prompts = [PROMPTS[1], PROMPTS[2]]
    alone = [what_happened(llm.generate(as_prompts([prompt]), greedy(30))[0]) for prompt in prompts]
    streams = [llm.stream(as_prompts([prompt]), greedy(30)) for prompt in prompts]
    outputs: list[Any] = [None, None]
    for updates in zip(*streams, strict=False):
        outputs = [update.output for update in updates]
    for place, stream in enumerate(streams):
        for update in stream:
            outputs[place] = update.output
    assert [what_happened(output) for output in outputs] == alone


def test_to_know_more_is_to_draft_better() -> None:
    """On random weights the differences are small but for the oracle's, so recall tells the others apart."""
    options = {"kv_budget": 0.2, "kv_budget_min": 32, "num_speculative_tokens": 2}
    llm = make_llm("llama", **options)
    prompts = llm.prefill(as_prompts([random_prompt(200, seed=seed) for seed in range(2)]))
    accepted, recall = {}, {}
    for name in ("oracle", "vegas", "quest", "stream"):
        trace = SelectionTrace(positions=False)
        outputs = llm.with_config(policy=name).generate(prompts, greedy(24), trace=trace)
        accepted[name] = sum(output.stats.accepted for output in outputs)
        recall[name] = trace.summary().recall
    assert accepted["oracle"] > 1.5 * max(accepted[name] for name in ("vegas", "quest", "stream"))
    assert recall["oracle"] == 1 > recall["vegas"] > recall["quest"] > recall["stream"] > 0.1


def test_the_positions_that_are_read_in_the_engine() -> None:
    [prompt] = as_prompts([PROMPTS[2]])
    options = {"kv_budget": 0.01, "kv_budget_min": 40, "num_speculative_tokens": 3}
    for policy in ("stream", "quest", "specextend"):
        trace = SelectionTrace()
        [output] = make_llm("gemma3_text", policy=policy, **options).generate(prompt, greedy(40), trace=trace)
        for each in (each for each in trace.iterations if each.drafted):
            positions = each.positions
            assert positions is not None
            prefix = each.prefix_len
            chosen = positions[0, 0, 0].tolist()
            if policy == "stream":
                assert positions.shape == (1, 2, 2, 40)
                assert chosen == [*range(16), *range(prefix - 24, prefix)]
            elif policy == "quest":  # two pages, and the unfinished one
                assert positions.shape == (each.drafted, 2, 2, 32 + prefix % 16)
                assert chosen[32:] == list(range(prefix // 16 * 16, prefix))
                assert chosen[0] % 16 == chosen[16] % 16 == 0
            else:
                retrieved_at = trace.iterations[each.iteration // 8 * 8].prefix_len // 32 * 32
                assert chosen[32:] == list(range(retrieved_at, prefix))
                assert chosen[:32] == list(range(chosen[0], chosen[0] + 32))
                assert chosen[0] % 32 == 0
                assert (positions == positions[0, 0, 0]).all()
        assert generated([output]) == [reference("gemma3_text", PROMPTS[2], 40)]
