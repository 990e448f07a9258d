"""What a trace of drafting says, against plain loops over sets."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from math import isnan
from typing import Any

import pytest
import torch
from engine_cases import as_prompts, describe, generated, greedy, make_llm
from tiny_models import random_prompt, tiny_model
from torch import Tensor

from vegas_bench.inspect.recorder import Recorder, SelectionTrace
from vegas_bench.inspect.trace import IterationTrace, summarise
from vegas_spec.config import ConfigError, VegasConfig
from vegas_spec.engine.attention import RowSpan
from vegas_spec.engine.kv_cache import KVCache
from vegas_spec.engine.request import Request
from vegas_spec.policies import Queries


def an_iteration(steps: int, recall: float, overlap: Tensor) -> IterationTrace:
    shares = torch.full((steps, *overlap.shape[:2]), recall)
    return IterationTrace(
        request_id="0",
        iteration=0,
        prefix_len=40,
        top_k=4,
        drafted=steps,
        accepted=0,
        layers=(1, 3),
        positions=None,
        recall=shares,
        mass=shares / 2,
        oracle_mass=torch.ones_like(shares),
        kept=None,
        overlap=overlap,
    )


def overlap_of(sets: list[set[int]]) -> Tensor:
    shares = torch.tensor([[len(a & b) / len(a) for b in sets] for a in sets])
    return shares.expand(2, 1, -1, -1)


def test_overlap_by_distance_is_the_mean_over_pairs() -> None:
    sets = [{1, 2, 3, 4}, {1, 2, 3, 9}, {1, 2, 8, 9}]
    trace = an_iteration(2, 1.0, overlap_of(sets))
    assert trace.overlap_by_distance().tolist() == [[[0.75]] * 2, [[0.5]] * 2]
    by_hand = [(3 / 5 + 3 / 5) / 2, 2 / 6]
    torch.testing.assert_close(trace.jaccard_by_distance()[:, 0, 0], torch.tensor(by_hand))


def test_a_summary_counts_every_iteration_as_far_as_it_drafted() -> None:
    longer = an_iteration(2, 1.0, overlap_of([{1, 2}, {1, 3}, {1, 2}]))
    shorter = an_iteration(1, 0.25, overlap_of([{1, 2}, {1, 2}]))
    summary = summarise([longer, shorter, an_iteration(0, 0.0, overlap_of([{1}]))])
    assert summary.iterations == 2
    assert summary.recall == pytest.approx((4 * 1.0 + 2 * 0.25) / 6)
    assert summary.recall_by_layer == {1: pytest.approx(0.75), 3: pytest.approx(0.75)}
    assert summary.recall_by_step == [pytest.approx(0.625), 1.0]
    assert summary.overlap_by_distance == [pytest.approx(0.75), 1.0]
    assert isnan(summary.kept)
    json.dumps(summary.to_dict())


def test_a_summary_of_nothing() -> None:
    summary = SelectionTrace().summary()
    assert (summary.iterations, summary.overlap_by_distance, summary.recall_by_layer) == (0, [], {})
    assert isnan(summary.recall)


def test_how_often_to_look_is_checked() -> None:
    with pytest.raises(ConfigError, match="every must be"):
        SelectionTrace(every=0)


# --- against transformers -------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"kv_budget": 0.2, "kv_budget_min": 6, "num_speculative_tokens": 4}


def best(weights: Tensor, count: int) -> set[int]:
    return set(weights.argsort(descending=True)[:count].tolist())


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_overlap_and_the_oracles_mass_are_those_of_the_models_own_attention(family: str) -> None:
    """Dense drafts are all accepted, so every row is one of the text's, whose weights transformers gives."""
    prompt, budget = random_prompt(60, seed=1), VegasConfig(**OPTIONS).budget
    trace = SelectionTrace()
    [output] = make_llm(family, policy="dense", **OPTIONS).generate(as_prompts([prompt]), greedy(24), trace=trace)
    text = torch.tensor([[*prompt, *output.outputs[0].token_ids]])
    with torch.inference_mode():
        attentions = tiny_model(family)(text, output_attentions=True, use_cache=False).attentions
    assert sum(each.accepted for each in trace.iterations) == output.stats.accepted > 10
    prefix_len, accepted = len(prompt), 0
    for number, each in enumerate(trace.iterations):
        assert (each.request_id, each.iteration, each.prefix_len) == ("0", number, prefix_len)
        assert each.top_k == budget(prefix_len)
        assert each.drafted == each.accepted
        assert each.positions is None
        assert each.kept is None
        assert each.layers == ((0, 1, 2, 3) if family == "qwen3" else (1, 3))
        assert each.overlap.shape == (len(each.layers), 2, each.drafted + 1, each.drafted + 1)
        assert each.recall.shape == each.mass.shape == each.oracle_mass.shape == (each.drafted, len(each.layers), 2)
        assert (each.recall == 1).all()
        assert (each.mass == 1).all()
        last, verified = prefix_len + accepted, prefix_len + accepted + 1  # the last token; the verification's prefix
        for (place, layer), head in itertools.product(enumerate(each.layers), range(2)):
            weights = attentions[layer][0, 2 * head : 2 * head + 2].sum(0)
            sets = [best(weights[last + row, :verified], budget(verified)) for row in range(each.drafted + 1)]
            shares = torch.tensor([[len(one & other) / budget(verified) for other in sets] for one in sets])
            torch.testing.assert_close(each.overlap[place, head], shares)
            for step in range(each.drafted):
                row = weights[last + step, :prefix_len]
                share = row[list(best(row, each.top_k))].sum() / row.sum()
                torch.testing.assert_close(each.oracle_mass[step, place, head], share, rtol=1e-3, atol=1e-5)
        prefix_len, accepted = verified, each.accepted


# --- against loops --------------------------------------------------------------------------------------------------


class Overheard(SelectionTrace):
    """Keeps, by request, what its recorder is asked at each layer of a draft step: layer, length, queries and keys."""

    def observer(self, cache: KVCache, config: VegasConfig) -> Recorder:
        self.asked = asked = defaultdict[str, list[tuple[int, int, Queries, Tensor]]](list)
        drafting: dict[int, tuple[str, int]] = {}

        class Overhearing(Recorder):
            def selected(self, batch: Sequence[Request], *rest: Any) -> None:
                drafting.update({each.slot: (each.output.request_id, each.prefix_len) for each in batch})
                super().selected(batch, *rest)

            def drafted(self, layer: int, rows: RowSpan, queries: Queries, keys_read: Tensor, *rest: Any) -> None:
                request_id, prefix_len = drafting[rows.slot]
                keys = cache.keys[layer][rows.slot, :, : rows.stop].clone()
                keys[:, prefix_len:] = keys_read[:, prefix_len - rows.stop :]
                asked[request_id].append((layer, rows.stop, queries, keys))
                super().drafted(layer, rows, queries, keys_read, *rest)

        return Overhearing(self, cache, config)


@pytest.mark.parametrize("options", [{}, {"granularity": "layer"}, {"policy": "quest"}], ids=describe)
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])
def test_recall_and_mass(family: str, options: dict[str, Any]) -> None:
    prompts = as_prompts([random_prompt(length, seed=length) for length in (50, 70)])
    trace = Overheard()
    llm = make_llm(family, max_num_seqs=2, **{**OPTIONS, "kv_budget_min": 20, "num_speculative_tokens": 2}, **options)
    llm.generate(prompts, greedy(8), trace=trace)
    assert {each.request_id for each in trace.iterations} == {"0", "1"}
    for request_id in ("0", "1"):
        questions = iter(trace.asked[request_id])
        for each in trace.of(request_id):
            for step, (place, index) in itertools.product(range(each.drafted), enumerate(each.layers)):
                layer, stop, queries, keys = next(questions)
                assert layer == index
                for head in range(2):
                    positions = each.positions[min(step, len(each.positions) - 1), place, head].tolist()  # type: ignore[index]
                    chosen = {position for position in positions if position >= 0}
                    assert max(chosen) < each.prefix_len < stop
                    weights = loop_weights(queries, keys, head)[: each.prefix_len]
                    top = best(weights, each.top_k)
                    where = (step, place, head)
                    assert float(each.recall[where]) == pytest.approx(len(top & chosen) / len(top), abs=1e-6)
                    for shares, one in ((each.mass, chosen), (each.oracle_mass, top)):
                        share = float(weights[list(one)].sum() / weights.sum())
                        assert float(shares[where]) == pytest.approx(share, abs=1e-4)
        assert next(questions, None) is None


def loop_weights(queries: Queries, keys: Tensor, kv_head: int) -> Tensor:
    """Softmax weights of one row, summed over the two query heads of a KV head, in float64."""
    total = torch.zeros(keys.shape[1], dtype=torch.float64)
    for head in (2 * kv_head, 2 * kv_head + 1):
        logits = keys[kv_head].double() @ queries.query[head, 0].double() * queries.scale
        sink = 0.0 if queries.sinks is None else float(queries.sinks[head].detach().double().exp())
        total += logits.exp() / (logits.exp().sum() + sink)
    return total


def test_what_was_kept_of_the_last_selection() -> None:
    trace = SelectionTrace()
    prompt = as_prompts([random_prompt(70)])
    make_llm("qwen3", policy="vegas", **OPTIONS).generate(prompt, greedy(16), trace=trace)
    assert trace.iterations[0].kept is None
    for last, each in itertools.pairwise(trace.iterations):
        for layer, head in itertools.product(range(4), range(2)):
            now, before = (set(one.positions[0, layer, head].tolist()) for one in (each, last))  # type: ignore[index]
            assert float(each.kept[layer, head]) == pytest.approx(len(now & before) / len(now))  # type: ignore[index]


# --- what observing costs -------------------------------------------------------------------------------------------


def test_without_a_trace_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("recorded without being asked")

    monkeypatch.setattr(Recorder, "__init__", refuse)
    make_llm("qwen3").generate(as_prompts([random_prompt(30)]), greedy(6))


@pytest.mark.parametrize("policy", ["vegas", "quest", "full"])
def test_observing_changes_nothing(policy: str) -> None:
    llm = make_llm("gemma3_text", policy=policy, max_num_seqs=2)
    prompts = as_prompts([random_prompt(length, seed=length) for length in (1, 60, 33)])
    plain = llm.generate(prompts, greedy(14))
    trace = SelectionTrace(positions=False, every=2)
    observed = llm.generate(prompts, greedy(14), trace=trace)
    assert generated(observed) == generated(plain)
    for one, other in zip(observed, plain, strict=True):
        assert one.stats.accepted_per_position == other.stats.accepted_per_position
    assert {each.iteration % 2 for each in trace.iterations} == {0}
    assert all(each.positions is None and each.kept is None for each in trace.iterations)
    assert len(trace.of("1")) == (plain[1].stats.iterations + 1) // 2


def test_a_model_without_full_attention_leaves_no_trace() -> None:
    trace = SelectionTrace()
    make_llm("mistral_sliding").generate(as_prompts([random_prompt(30)]), greedy(6), trace=trace)
    assert trace.iterations == []
