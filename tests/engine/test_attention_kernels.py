"""The backend on kernels does what the one in torch does: by their references on a CPU, by the kernels on a GPU."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from engine_cases import as_prompts, generated, greedy, make_llm, reference
from tiny_models import random_prompt
from torch import Tensor

from vegas_bench.inspect.recorder import SelectionTrace
from vegas_spec.config import ConfigError, VegasConfig
from vegas_spec.engine.attention import AttentionParams, RowSpan
from vegas_spec.engine.attention_kernels import KernelBackend
from vegas_spec.engine.attention_torch import TorchBackend
from vegas_spec.engine.backend import Kind
from vegas_spec.engine.kv_cache import KVCache, LayerSpec
from vegas_spec.policies import Policy, Verified
from vegas_spec.selection import NO_POSITION, look_ahead, query_key_logits, score_rows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
RAGGED = [random_prompt(length, seed=length) for length in (1, 40, 23, 90)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"granularity": "layer", "lookahead": 0.7},
        {"lookahead": 0.5},
        {"score": "logit", "rows": "all"},
        {"policy": "dense"},
    ],
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


class Fixed(Policy):
    """Answers what the kernels have chosen."""

    name = "fixed"
    summary = "what the kernels chose"
    answer: ClassVar[Tensor]

    def select(self, verified: Verified) -> Tensor:
        return self.answer


@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize(
    ("score", "granularity", "lookahead"),
    [
        ("weight", "kv_head", 0.0),
        ("weight", "layer", 0.0),
        ("weight", "kv_head", 0.5),
        ("weight", "layer", 0.5),
        ("logit", "kv_head", 0.0),
        ("logit", "layer", 0.0),
    ],
)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(14, 2, 64), (4, 4, 128)])
@pytest.mark.parametrize("device", DEVICES)
def test_an_iteration_equals_the_one_in_torch(
    device: str, heads: int, kv_heads: int, dim: int, score: str, granularity: str, lookahead: float, sinks: bool
) -> None:
    """Verification, selection and three draft steps of a ragged batch; the rest of the cache is not a number."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    lengths, rows = ((5000, 300, 12_000), (7, 1, 4)) if device == "cuda" else ((150, 40, 260), (7, 1, 4))
    config = VegasConfig(kv_budget_min=24, score=score, granularity=granularity, lookahead=lookahead)  # type: ignore[arg-type]
    layers = [LayerSpec(0, heads, kv_heads, dim, None), LayerSpec(1, heads, kv_heads, dim, 100)]
    cache = KVCache(layers, 3, max(lengths) + 40, dtype, torch.device(device))
    for entries, (slot, length) in itertools.product((*cache.keys, *cache.values), enumerate(lengths)):
        entries[slot] = torch.nan
        entries[slot, :, :length] = torch.randn(kv_heads, length, dim)
    on_kernels = KernelBackend(cache, config)
    in_torch = TorchBackend(cache, dataclasses.replace(config, policy=f"{Fixed.__module__}:Fixed"))
    sink = torch.randn(heads, device=device).to(dtype) if sinks else None
    verified: dict[int, Tensor] = {}

    def attend(kind: Kind, batch: list[RowSpan], layer: int) -> tuple[Tensor, Tensor]:
        count = sum(each.count for each in batch)
        query = torch.randn(heads, count, dim, device=device).to(dtype) * 2
        verified.setdefault(layer, query)
        key, value = (torch.randn(kv_heads, count, dim, device=device).to(dtype) for _ in range(2))
        params = AttentionParams(dim**-0.5, layers[layer].sliding_window, None, sink)
        budgets = [config.budget(each.start + 1) for each in batch]
        one, other = (
            backend.begin(kind, batch, budgets).attend(layer, query, key, value, params)
            for backend in (in_torch, on_kernels)
        )
        return one.float(), other.float()

    tolerance = {"rtol": 2e-2, "atol": 2e-2} if device == "cuda" else {"rtol": 1e-4, "atol": 1e-5}
    batch = [RowSpan(slot, length, count) for slot, (length, count) in enumerate(zip(lengths, rows, strict=True))]
    for layer in (1, 0):
        torch.testing.assert_close(*attend("verify", batch, layer), **tolerance)
    accepted = [count // 2 for count in rows]
    committed = [each.start + 1 + count for each, count in zip(batch, accepted, strict=True)]
    counts = [config.budget(length + 1) for length in lengths]
    assert on_kernels.select(accepted, committed).counts == counts

    chosen = []
    first_row = 0
    for place, (each, count) in enumerate(zip(batch, counts, strict=True)):
        positions = on_kernels.lists[0][place, :, :count].long() - each.slot * kv_heads * cache.length
        assert (positions.diff(dim=1) > 0).all()
        assert positions.min() >= 0
        assert positions.max() <= each.start
        chosen.append(positions)
        if score == "weight":
            # Kernels know each row's sum of weights by a sample of its keys only: nearly the best will do.
            scores = exact_scores(verified[0][:, first_row : first_row + each.count], cache, each, granularity, sink)
            scores = look_ahead(scores, lookahead) if lookahead else scores
            best = scores.topk(count, dim=1).values.sum(1)
            assert (scores.gather(1, positions).sum(1) > 0.8 * best).all()
        first_row += each.count
    # From here on both draft over what the kernels chose.
    width = max(counts)
    Fixed.answer = torch.stack([F.pad(each, (0, width - each.shape[1]), value=NO_POSITION) for each in chosen])[None]
    assert in_torch.select(accepted, committed).counts == counts
    for drafted in range(3):
        steps = [
            RowSpan(each.slot, each.start + 1 + count + drafted, 1) for each, count in zip(batch, accepted, strict=True)
        ]
        # One request ends its draft early: the others' lists must still be theirs.
        steps = steps if drafted < 2 else steps[::2]
        for layer in (1, 0):
            torch.testing.assert_close(*attend("draft", steps, layer), **tolerance)


def exact_scores(query: Tensor, cache: KVCache, rows: RowSpan, granularity: Any, sinks: Tensor | None) -> Tensor:
    """Weights of the first and last row over the prefix, by the definition."""
    keys = cache.keys[0][rows.slot, :, : rows.stop]
    ends = query[:, sorted({0, rows.count - 1})]
    logits = query_key_logits(ends.float(), keys.float(), ends.shape[-1] ** -0.5)
    position = torch.arange(rows.stop, device=keys.device)
    own = torch.tensor(sorted({rows.start, rows.stop - 1}), device=keys.device)
    visible = position <= own[:, None]
    return score_rows(logits, visible, keys.shape[0], "weight", granularity, sinks)[:, : rows.start + 1]
