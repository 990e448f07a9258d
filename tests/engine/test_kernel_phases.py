"""The phases on kernels do what those in torch do: on a CPU by the kernels' references, on a GPU by the kernels."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass

import pytest
import torch
from engine_cases import as_prompts, generated, greedy, make_llm, reference
from tiny_models import random_prompt
from torch import Tensor

from vegas_spec import SelectionTrace
from vegas_spec.config import ConfigError, VegasConfig
from vegas_spec.engine.attention import AttentionParams, Rows
from vegas_spec.engine.kernel_phases import KernelPhases
from vegas_spec.engine.kv_cache import KVCache, LayerSpec
from vegas_spec.engine.phases import Phases, TorchPhases
from vegas_spec.policies import make_policy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
RAGGED = [random_prompt(length, seed=length) for length in (1, 40, 23, 90)]


@pytest.mark.parametrize(
    "options", [{}, {"granularity": "layer"}, {"score": "logit", "rows": "all"}, {"policy": "dense"}]
)
@pytest.mark.parametrize("family", ["qwen3", "mistral_sliding", "gemma3_text", "gpt_oss"])
def test_greedy_output_is_that_of_transformers(family: str, options: dict[str, str]) -> None:
    llm = make_llm(family, attention="kernels", max_num_seqs=3, **options)
    outputs = llm.generate(as_prompts(RAGGED), greedy(16))
    assert generated(outputs) == [reference(family, prompt, 16) for prompt in RAGGED]


@pytest.mark.parametrize("policy", ["stream", "specextend"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_a_policy_that_selects_after_verification_reads_the_same_as_in_torch(family: str, policy: str) -> None:
    """So the same drafts are accepted; with chunks of 32, prompts must be long enough to leave some out."""
    prompts = [random_prompt(length, seed=length) for length in (150, 1, 90)]
    options = {"policy": policy, "max_num_seqs": 2, "kv_budget": 0.3, "num_speculative_tokens": 3}
    in_torch, on_kernels = (
        make_llm(family, attention=attention, **options).generate(as_prompts(prompts), greedy(24))
        for attention in ("torch", "kernels")
    )
    assert generated(on_kernels) == [reference(family, prompt, 24) for prompt in prompts]
    for one, other in zip((output.stats for output in in_torch), (output.stats for output in on_kernels), strict=True):
        assert one.accepted_per_position == other.accepted_per_position
        assert (one.draft_kv_entries, one.iterations) == (other.draft_kv_entries, other.iterations)
        assert other.selection_seconds > 0
    assert in_torch[0].stats.draft_kv_share < 0.9
    assert in_torch[0].stats.iterations > 8  # so that specextend has looked again
    assert sum(output.stats.accepted for output in in_torch) > 0


@pytest.mark.parametrize("options", [{"rows": "last"}, {"policy": "quest"}, {"policy": "oracle"}])
def test_what_the_kernels_do_not_do_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="attention='torch'"):
        make_llm("qwen3", attention="kernels", **options)


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ConfigError, match="needs Triton"):
        make_llm("qwen3", attention="kernels")


def test_the_kernels_are_not_traced() -> None:
    with pytest.raises(ConfigError, match="a trace needs attention='torch'"):
        make_llm("qwen3", attention="kernels").generate(as_prompts(RAGGED), greedy(4), trace=SelectionTrace())


@dataclass
class _Request:
    """As much of a request as selection looks at."""

    slot: int
    prefix_len: int
    token_ids: list[int]
    max_length: int
    num_selected: int = 0
    finished: bool = False


@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize(("score", "granularity"), [*itertools.product(["weight", "logit"], ["kv_head", "layer"])])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(14, 2, 64), (4, 4, 128)])
@pytest.mark.parametrize("device", DEVICES)
def test_an_iteration_equals_the_one_in_torch(
    device: str, heads: int, kv_heads: int, dim: int, score: str, granularity: str, sinks: bool
) -> None:
    """Verification, selection and three draft steps of a ragged batch; the rest of the cache is not a number."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    lengths, rows = ((5000, 300, 12_000), (7, 1, 4)) if device == "cuda" else ((150, 40, 260), (7, 1, 4))
    config = VegasConfig(kv_budget_min=24, score=score, granularity=granularity)  # type: ignore[arg-type]
    layers = [LayerSpec(0, heads, kv_heads, dim, None), LayerSpec(1, heads, kv_heads, dim, 100)]
    cache = KVCache(layers, 3, max(lengths) + 40, dtype, torch.device(device))
    for entries, (slot, length) in itertools.product((*cache.keys, *cache.values), enumerate(lengths)):
        entries[slot] = torch.nan
        entries[slot, :, :length] = torch.randn(kv_heads, length, dim)
    policy = make_policy(config)
    in_torch, on_kernels = TorchPhases(cache, policy, config), KernelPhases(cache, policy, config)
    both: list[Phases] = [in_torch, on_kernels]
    sink = torch.randn(heads, device=device).to(dtype) if sinks else None

    def attend(step_of: str, batch: list[Rows], layer: int) -> tuple[Tensor, Tensor]:
        count = sum(each.count for each in batch)
        query = torch.randn(heads, count, dim, device=device).to(dtype) * 2
        key, value = (torch.randn(kv_heads, count, dim, device=device).to(dtype) for _ in range(2))
        params = AttentionParams(dim**-0.5, layers[layer].sliding_window, None, sink)
        one, other = (getattr(phases, step_of)(batch).attend(layer, query, key, value, params) for phases in both)
        return one.float(), other.float()

    tolerance = {"rtol": 2e-2, "atol": 2e-2} if device == "cuda" else {"rtol": 1e-4, "atol": 1e-5}
    batch = [Rows(slot, length, count) for slot, (length, count) in enumerate(zip(lengths, rows, strict=True))]
    for layer in (1, 0):
        torch.testing.assert_close(*attend("verify", batch, layer), **tolerance)
    accepted = [count // 2 for count in rows]
    for phases in both:
        requests = [
            _Request(each.slot, each.start + 1, [0] * (each.start + 2 + count), cache.length)
            for each, count in zip(batch, accepted, strict=True)
        ]
        phases.select(requests, accepted)  # type: ignore[arg-type]
        assert [request.num_selected for request in requests] == [config.budget(n + 1) for n in lengths]
    for place, (rows_of, count) in enumerate(zip(batch, accepted, strict=True)):
        selected = config.budget(rows_of.start + 1)
        positions = on_kernels.lists[0][place, :, :selected].long() - rows_of.slot * kv_heads * cache.length
        assert (positions.diff(dim=1) > 0).all()
        assert positions.min() >= 0
        assert positions.max() <= rows_of.start
        scores = in_torch._scores._scores[0, 0, place]  # type: ignore[union-attr]
        if score == "weight":
            # Kernels know each row's sum of weights by a sample of its keys only: nearly the best will do.
            best = scores.topk(selected, dim=1).values.sum(1)
            assert (scores.gather(1, positions).sum(1) > 0.8 * best).all()
        # From here on both draft over what the kernels chose.
        in_torch.draft_caches[rows_of.slot].gather(0, positions, rows_of.start + 1, rows_of.start + 1 + count)
    for drafted in range(3):
        steps = [
            Rows(each.slot, each.start + 1 + count + drafted, 1) for each, count in zip(batch, accepted, strict=True)
        ]
        # One request ends its draft early: the others' lists must still be theirs.
        steps = steps if drafted < 2 else steps[::2]
        for layer in (1, 0):
            torch.testing.assert_close(*attend("draft", steps, layer), **tolerance)
