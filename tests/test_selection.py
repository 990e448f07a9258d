"""The definition of scores and selection, against loops over single elements."""

from __future__ import annotations

from math import exp, inf, isnan, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vegas_spec.selection import NO_POSITION, look_ahead, rank_positions, score_rows, select_positions

FEW_VALUES = st.sampled_from([0.0, 1.0, -1.0, 0.5, inf, -inf, float("nan")])  # few, so that ties are common
ANY_VALUE = st.floats(width=32)


def naive_selection(scores: list[float], prefix_len: int, count: int) -> list[int]:
    def rank(position: int) -> tuple[float, int]:
        score = scores[position]
        return (-inf if isnan(score) else score, position)

    return sorted(sorted(range(prefix_len), key=rank, reverse=True)[:count])


def naive_scores(
    logits: Tensor, visible: Tensor, num_kv_heads: int, score: str, granularity: str, sinks: Tensor | None
) -> list[list[float]]:
    rows, heads, keys = logits.shape
    groups = num_kv_heads if granularity == "kv_head" else 1
    result = [[0.0] * keys for _ in range(groups)]
    for row in range(rows):
        for head in range(heads):
            group = head // (heads // groups)
            seen = [key for key in range(keys) if visible[row, key]]
            terms = [exp(float(logits[row, head, key])) for key in seen]
            total = sum(terms) + (exp(float(sinks[head])) if sinks is not None else 0.0)
            for key in seen:
                logit = float(logits[row, head, key])
                result[group][key] += exp(logit - log(total)) if score == "weight" else logit
    return result


@st.composite
def selections(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    batch, groups, keys = draw(st.integers(0, 4)), draw(st.integers(1, 3)), draw(st.integers(0, 24))
    lead = draw(st.sampled_from([(), (1,), (3,)]))
    values = draw(st.sampled_from([FEW_VALUES, ANY_VALUE, st.just(0.25)]))
    size = batch * groups * keys * (lead[0] if lead else 1)
    flat = draw(st.lists(values, min_size=size, max_size=size))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    scores = torch.tensor(flat, dtype=torch.float64).to(dtype).view(*lead, batch, groups, keys)
    lens = [draw(st.integers(0, keys)) for _ in range(batch)]
    counts = [draw(st.one_of(st.just(0), st.just(length), st.integers(0, length))) for length in lens]
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return scores, torch.tensor(lens, dtype=dtype), torch.tensor(counts, dtype=dtype)


@settings(deadline=None, max_examples=150)
@given(case=selections())
def test_selection_is_the_naive_one(case: tuple[Tensor, Tensor, Tensor]):
    scores, prefix_lens, counts = case
    before = scores.clone()
    positions = select_positions(scores, prefix_lens, counts)
    width = int(counts.max()) if counts.numel() else 0
    assert positions.dtype == torch.int64
    assert positions.shape == (*scores.shape[:-1], width)
    batch, groups, keys = scores.shape[-3:]
    layers = scores.shape[0] if scores.dim() == 4 else 1
    flat_scores = scores.double().reshape(layers, batch, groups, keys)
    flat = positions.reshape(layers, batch, groups, width)
    for layer in range(layers):
        for request in range(batch):
            for group in range(groups):
                expected = naive_selection(
                    flat_scores[layer, request, group].tolist(), int(prefix_lens[request]), int(counts[request])
                )
                padding = [NO_POSITION] * (width - len(expected))
                assert flat[layer, request, group].tolist() == expected + padding
    torch.testing.assert_close(scores, before, rtol=0, atol=0, equal_nan=True, msg="the scores are the caller's")
    ranked = rank_positions(scores, prefix_lens, counts, width + 3)
    assert ranked.equal(torch.nn.functional.pad(positions, (0, 3), value=NO_POSITION))


@pytest.mark.parametrize("fill", [0.0, 7.5, inf, -inf, float("nan")])
def test_ties_go_to_the_larger_position(fill: float):
    scores = torch.full((1, 2, 10), fill)
    assert select_positions(scores, torch.tensor([8]), torch.tensor([3])).tolist() == [[[5, 6, 7]] * 2]


def test_a_nan_is_chosen_last_and_never_hides_another_score():
    scores = torch.tensor([[[float("nan"), 1.0, float("nan"), -5.0, inf]]])
    for count, expected in ((1, [4]), (2, [1, 4]), (3, [1, 3, 4]), (4, [1, 2, 3, 4])):
        assert select_positions(scores, torch.tensor([5]), torch.tensor([count])).tolist() == [[expected]]


@pytest.mark.parametrize("poison", [inf, float("nan"), 1e30])
def test_what_lies_beyond_the_prefix_is_ignored(poison: float):
    scores = torch.rand(2, 3, 16)
    scores[0, :, 5:] = poison
    positions = select_positions(scores, torch.tensor([5, 16]), torch.tensor([5, 4]))
    assert positions[0].tolist() == [[0, 1, 2, 3, 4]] * 3
    assert (positions[1, :, :4] < 16).all()


def test_empty_batches_and_budgets():
    assert select_positions(torch.zeros(0, 2, 5), torch.zeros(0).long(), torch.zeros(0).long()).shape == (0, 2, 0)
    assert select_positions(torch.zeros(2, 0, 5), torch.tensor([5, 5]), torch.tensor([2, 3])).shape == (2, 0, 3)
    assert select_positions(torch.zeros(2, 1, 0), torch.zeros(2).long(), torch.zeros(2).long()).shape == (2, 1, 0)
    nothing_and_all = select_positions(torch.zeros(2, 1, 3), torch.tensor([3, 3]), torch.tensor([0, 3]))
    assert nothing_and_all.tolist() == [[[NO_POSITION] * 3], [[0, 1, 2]]]


@st.composite
def score_cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, int, Tensor | None]:
    kv_heads, share, rows, keys = (draw(st.integers(1, high)) for high in (3, 3, 4, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = 4 * torch.randn(rows, kv_heads * share, keys, generator=generator, dtype=torch.float64)
    first = draw(st.integers(0, keys - 1))  # row t is at position first + t: it sees all up to itself
    visible = torch.arange(keys) <= first + torch.arange(rows)[:, None]
    sinks = torch.randn(kv_heads * share, generator=generator) if draw(st.booleans()) else None
    return logits, visible, kv_heads, sinks


@settings(deadline=None)
@given(
    case=score_cases(), score=st.sampled_from(["weight", "logit"]), granularity=st.sampled_from(["kv_head", "layer"])
)
def test_scores_are_the_naive_ones(case: tuple[Tensor, Tensor, int, Tensor | None], score, granularity):
    logits, visible, kv_heads, sinks = case
    expected = torch.tensor(naive_scores(logits, visible, kv_heads, score, granularity, sinks), dtype=torch.float64)
    scores = score_rows(logits, visible, kv_heads, score, granularity, sinks)
    assert scores.dtype == torch.float64
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-12)
    single = score_rows(logits.float(), visible, kv_heads, score, granularity, sinks)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-4)
    half = score_rows(logits.bfloat16(), visible, kv_heads, score, granularity, sinks)
    assert half.dtype == torch.float32


@settings(deadline=None)
@given(case=score_cases())
def test_weights_of_a_row_sum_to_one_less_what_the_sink_takes(case: tuple[Tensor, Tensor, int, Tensor | None]):
    logits, visible, kv_heads, sinks = case
    rows, heads, _ = logits.shape
    total = float(score_rows(logits, visible, kv_heads, "weight", "layer", sinks).sum())
    if sinks is None:
        assert total == pytest.approx(rows * heads)
    else:
        assert 0 < total < rows * heads


@settings(deadline=None)
@given(case=score_cases())
def test_logit_scores_are_those_of_one_summed_query(case: tuple[Tensor, Tensor, int, Tensor | None]):
    """By linearity; it is what lets a kernel collect them with a single extra query row."""
    logits, _, kv_heads, _ = case
    rows, heads, keys = logits.shape
    generator = torch.Generator().manual_seed(rows * 100 + keys)
    queries = torch.randn(rows, heads, 8, generator=generator, dtype=torch.float64)
    key_vectors = torch.randn(kv_heads, keys, 8, generator=generator, dtype=torch.float64)
    per_head = key_vectors.repeat_interleave(heads // kv_heads, 0)
    products = torch.einsum("thd,hkd->thk", queries, per_head)
    scores = score_rows(products, torch.ones(rows, keys, dtype=torch.bool), kv_heads, "logit", "kv_head")
    summed = queries.sum(0).view(kv_heads, heads // kv_heads, 8).sum(1)
    torch.testing.assert_close(scores, torch.einsum("gd,gkd->gk", summed, key_vectors))


def test_a_key_that_no_row_sees_scores_nothing():
    logits = torch.full((2, 2, 6), 50.0)
    visible = torch.arange(6).expand(2, 6) <= torch.tensor([[2], [3]])
    for score in ("weight", "logit"):
        scores = score_rows(logits, visible, 1, score, "kv_head")
        assert (scores[:, 4:] == 0).all()
        assert (scores[:, :4] > 0).all()


def test_large_logits_do_not_overflow():
    scores = score_rows(torch.tensor([[[1e4, -1e4, 1e4]]]), torch.ones(1, 3, dtype=torch.bool), 1, "weight", "layer")
    assert scores.tolist() == [[0.5, 0.0, 0.5]]


@settings(deadline=None)
@given(
    scores=st.lists(st.floats(0, 2, width=32) | st.just(float("nan")), max_size=70),
    decay=st.floats(0.01, 0.99),
)
def test_look_ahead_is_a_decayed_running_maximum(scores: list[float], decay: float):
    want, before = [], 0.0
    for score in scores:
        before = max(0.0 if isnan(score) else score, decay * before)
        want.append(before)
    ahead = look_ahead(torch.tensor([scores, scores], dtype=torch.float64), decay)
    torch.testing.assert_close(ahead, torch.tensor([want, want], dtype=torch.float64))
