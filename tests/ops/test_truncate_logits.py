"""truncate_logits against the exact rules, one token at a time, and its kernel against its reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from vegas_spec.ops.truncate_logits import STEP, launch, reference, truncate_logits

NONE = (0, 1.0, 0.0)
"""No top-k (0 stands for the vocabulary), top-p or min-p."""


def run(function, logits, rows, temperatures, device):
    """Truncate a copy; `rows` are each row's top-k, top-p and min-p, whose states lie in reverse order."""
    out = logits.clone().to(device)
    order = torch.arange(len(rows)).flip(0)
    top_k, top_p, min_p = (torch.tensor([rows[i][j] for i in order.tolist()], device=device) for j in range(3))
    top_k = torch.where(top_k == 0, logits.shape[1], top_k).int()
    temperature = torch.tensor([temperatures[i] for i in order.tolist()], dtype=torch.float32, device=device)
    function(out, order.to(device), temperature, top_k, top_p.float(), min_p.float())
    return out.cpu()


def exactly_kept(logits, temperature, top_k, top_p, min_p, slack=None):
    """The tokens that min-p, then top-k, then top-p keep, by their definitions.

    With a `slack`, top-k lets tokens stay that are as near to its last one, which top-p then counts.
    """
    scaled = [value / temperature for value in logits.double().tolist()]
    best = max(scaled)
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    if min_p > 0:
        order = [token for token in order if scaled[token] - best >= math.log(min_p)]
    if top_k:
        last = scaled[order[:top_k][-1]]
        order = order[:top_k] if slack is None else [token for token in order if scaled[token] >= last - slack]
    weights = [math.exp(scaled[token] - best) for token in order]
    kept, reached = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if reached >= top_p * sum(weights) * (1 + 1e-6) and top_p < 1:
            break
        kept.append(token)
        reached += weight
    return kept, scaled, best


def check(logits, rows, temperatures, device):
    truncated = {function: run(function, logits, rows, temperatures, device) for function in (reference, launch)}
    for out in truncated.values():
        for row, (params, temperature) in enumerate(zip(rows, temperatures, strict=True)):
            left = (out[row] > -torch.inf).nonzero().flatten().tolist()
            assert torch.equal(out[row, left], logits[row, left])
            if temperature == 0 or params == NONE:
                assert torch.equal(out[row], logits[row])
                continue
            kept, scaled, best = exactly_kept(logits[row], temperature, *params)
            most, *_ = exactly_kept(logits[row], temperature, *params, slack=STEP)
            # A threshold within rounding of a token may fall to either side of it.
            rounding = STEP + 1e-4 * (1 + abs(best))
            certain = min(scaled[token] for token in kept) + rounding
            possible = min(scaled[token] for token in most) - rounding
            for token in range(logits.shape[1]):
                if scaled[token] - best > -31:
                    assert token in left or scaled[token] <= certain
                    assert token not in left or scaled[token] >= possible


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    seed=st.integers(0, 10**6),
    vocab=st.sampled_from([3, 50, 700]),
    rows=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 5, 20]), st.sampled_from([1.0, 0.05, 0.5, 0.9]), st.sampled_from([0, 0.1])),
        min_size=1,
        max_size=4,
    ),
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 3.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
# A sixth token, within a step of the fifth, takes so much of the mass that the best one alone is less than half of it.
@example(seed=754, vocab=50, rows=[NONE, NONE, (5, 0.5, 0)], temperature=3.0, dtype=torch.bfloat16)
def test_what_is_kept(device, seed, vocab, rows, temperature, dtype):
    rows = [(0 if k >= vocab else k, p, m) for k, p, m in rows]
    logits = 3 * torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(seed)).to(dtype)
    check(logits, rows, [temperature] * len(rows), device)


def test_rows_are_strangers(device):
    """Masked tokens, ties, one token only, several blocks of the vocabulary, rows of requests that ask for nothing."""
    logits = torch.randn(6, 9000, generator=torch.Generator().manual_seed(1))
    logits[0, 5:] = -torch.inf
    logits[1] = 1.0
    logits[2, 1:] = -torch.inf
    rows = [(3, 0.9, 0.0), (4, 0.5, 0.0), (1, 0.1, 0.5), NONE, (50, 0.95, 0.0), (0, 0.8, 0.0)]
    check(logits, rows, [1.0, 1.0, 0.7, 1.0, 0.7, 0.0], device)


@pytest.mark.parametrize("function", [reference, launch])
def test_rows_that_are_left_alone(device, function):
    """Padding, a row without any token, and a row whose batch is a part of a wider tensor."""
    wide = torch.randn(3, 80, generator=torch.Generator().manual_seed(2)).to(device)
    wide[1] = -torch.inf
    logits, states = wide[:, :64], torch.tensor([-1, 0, 0], device=device)
    one = torch.ones(1, device=device)
    expected = wide.clone()
    function(logits, states, one, one.int(), one, 0 * one)
    best = expected[2, :64].argmax()
    assert torch.equal(wide[:2], expected[:2])
    assert torch.equal(wide[2, 64:], expected[2, 64:])
    assert (logits[2] > -torch.inf).nonzero().flatten().tolist() == [best]


def test_arguments_are_checked(device):
    logits, one = torch.zeros(2, 8, device=device), torch.ones(1, device=device)
    states = torch.zeros(2, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match=r"top_k must be of dtype torch\.int32; got torch\.float32"):
        truncate_logits(logits, states, one, one, one, one)
    with pytest.raises(ValueError, match=r"states must be of shape \[2\]; got \[1\]"):
        truncate_logits(logits, states[:1], one, one.int(), one, one)
