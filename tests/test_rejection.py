"""Acceptance, against loops over single elements, and its law against the target's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vegas_spec.rejection import NO_TOKEN, accept, accept_greedy, draw

ALMOST_ONE = math.nextafter(1.0, 0.0)


# --- the naive versions ---------------------------------------------------------------------------------------------


def naive_draw(weights: list[float], uniform: float) -> int:
    total = sum(weights)
    reached = 0.0
    for index, weight in enumerate(weights):
        reached += weight
        if weight > 0 and (reached > uniform * total or reached >= total):
            return index
    raise AssertionError("all weights are zero")


def naive_greedy(drafts: list[int], targets: list[int], count: int) -> list[int]:
    committed: list[int] = []
    for step in range(count):
        if drafts[step] != targets[step]:
            break
        committed.append(drafts[step])
    return [*committed, targets[len(committed)]]


def naive_accept(
    drafts: list[int], q: list[list[float]] | None, p: list[list[float]], count: int, uniforms: list[float]
) -> list[int]:
    vocab = len(p[0])
    committed: list[int] = []
    for step in range(count):
        token = drafts[step]
        q_row = q[step] if q is not None else [float(index == token) for index in range(vocab)]
        if uniforms[step] * q_row[token] < p[step][token]:
            committed.append(token)
            continue
        residual = [max(p[step][index] - q_row[index], 0.0) for index in range(vocab)]
        return [*committed, naive_draw(residual if sum(residual) > 0 else p[step], uniforms[-1])]
    return [*committed, naive_draw(p[count], uniforms[-1])]


def padded(tokens: list[int], width: int) -> list[int]:
    return tokens + [NO_TOKEN] * (width - len(tokens))


# --- random cases ---------------------------------------------------------------------------------------------------


def random_probs(shape: tuple[int, ...], generator: torch.Generator, zeros: float = 0.3) -> Tensor:
    """Distributions over the last dimension, with some tokens excluded, as top-k and top-p do."""
    weights = torch.rand(shape, generator=generator, dtype=torch.float64) ** 3
    keep = torch.rand(shape, generator=generator) >= zeros
    keep[..., 0] |= ~keep.any(-1)
    weights = (weights + 1e-3) * keep
    return weights / weights.sum(-1, keepdim=True)


def drawn_from(probs: Tensor, generator: torch.Generator) -> Tensor:
    """One index per row, by a way of its own: the first whose cumulative probability exceeds a uniform number."""
    cumulative = probs.cumsum(-1)
    uniforms = torch.rand(probs.shape[:-1], generator=generator, dtype=torch.float64)
    return (cumulative <= uniforms[..., None] * cumulative[..., -1:]).sum(-1)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, gamma, vocab = draw(st.integers(0, 4)), draw(st.integers(0, 5)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    p = random_probs((batch, gamma + 1, vocab), generator)
    agrees = draw(st.booleans())
    q = p[:, :gamma].clone() if agrees else random_probs((batch, gamma, vocab), generator)
    drafts = drawn_from(q, generator)
    counts = torch.tensor([draw(st.integers(0, gamma)) for _ in range(batch)], dtype=torch.int64)
    edge = st.sampled_from([0.0, 0.5, ALMOST_ONE])
    uniform = st.one_of(edge, st.floats(0, 1, exclude_max=True))
    uniforms = torch.tensor([draw(uniform) for _ in range(batch * (gamma + 1))], dtype=torch.float64)
    return drafts, q, p, counts, uniforms.view(batch, gamma + 1)


@settings(deadline=None, max_examples=200)
@given(case=batches(), drawn=st.booleans())
def test_accept_is_the_naive_one(case: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], drawn: bool):
    drafts, q, p, counts, uniforms = case
    beyond = torch.arange(drafts.shape[1]) >= counts[:, None]
    poisoned = drafts.masked_fill(beyond, 10**9)  # what lies beyond a request's drafts is never looked at
    result = accept(poisoned, q if drawn else None, p, counts, uniforms)
    for row in range(len(counts)):
        expected = naive_accept(
            drafts[row].tolist(),
            q[row].tolist() if drawn else None,
            p[row].tolist(),
            int(counts[row]),
            uniforms[row].tolist(),
        )
        assert result.tokens[row].tolist() == padded(expected, drafts.shape[1] + 1)
        assert int(result.num_accepted[row]) == len(expected) - 1
    assert result.tokens.shape == (len(counts), drafts.shape[1] + 1)
    assert result.tokens.dtype == result.num_accepted.dtype == torch.int64


@settings(deadline=None, max_examples=200)
@given(
    case=st.integers(0, 5).flatmap(
        lambda gamma: st.lists(
            st.tuples(
                st.lists(st.integers(0, 2), min_size=gamma, max_size=gamma),
                st.lists(st.integers(0, 2), min_size=gamma + 1, max_size=gamma + 1),
                st.integers(0, gamma),
            ),
            min_size=1,
            max_size=4,
        )
    )
)
def test_greedy_is_the_naive_one(case: list[tuple[list[int], list[int], int]]):
    drafts, targets, counts = (list(column) for column in zip(*case, strict=True))
    gamma = len(targets[0]) - 1
    result = accept_greedy(
        torch.tensor(drafts, dtype=torch.int64).view(len(case), gamma), torch.tensor(targets), torch.tensor(counts)
    )
    expected = [naive_greedy(*row) for row in case]
    assert result.tokens.tolist() == [padded(tokens, gamma + 1) for tokens in expected]
    assert result.num_accepted.tolist() == [len(tokens) - 1 for tokens in expected]


@pytest.mark.parametrize("drawn", [True, False])
def test_greedy_is_accept_of_certain_distributions(drawn: bool):
    generator = torch.Generator().manual_seed(3)
    drafts = torch.randint(0, 3, (64, 4), generator=generator)
    targets = torch.randint(0, 3, (64, 5), generator=generator)
    counts = torch.randint(0, 5, (64,), generator=generator)
    q = torch.nn.functional.one_hot(drafts, 3).double() if drawn else None
    uniforms = torch.rand(64, 5, generator=generator)
    sampled = accept(drafts, q, torch.nn.functional.one_hot(targets, 3).double(), counts, uniforms)
    greedy = accept_greedy(drafts, targets, counts)
    assert sampled.tokens.equal(greedy.tokens)
    assert sampled.num_accepted.equal(greedy.num_accepted)


def test_equal_distributions_accept_every_draft():
    generator = torch.Generator().manual_seed(0)
    p = random_probs((500, 5, 7), generator)
    q = p[:, :4]
    drafts = drawn_from(q, generator)
    uniforms = torch.rand(500, 5, generator=generator, dtype=torch.float64)
    uniforms[0] = ALMOST_ONE
    result = accept(drafts, q, p, torch.full((500,), 4), uniforms)
    assert (result.num_accepted == 4).all()


def test_a_draft_that_the_target_excludes_is_never_accepted():
    p = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]])
    for uniform in (0.0, 0.3, ALMOST_ONE):
        result = accept(torch.tensor([[0]]), None, p, torch.tensor([1]), torch.full((1, 2), uniform))
        assert result.tokens.tolist() == [[1, NO_TOKEN]]


# --- draw -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(
    weights=st.lists(
        st.one_of(st.just(0.0), st.floats(1e-30, 1.0), st.just(1e-300), st.just(1.0)), min_size=1, max_size=12
    ).filter(any),
    uniform=st.one_of(st.sampled_from([0.0, ALMOST_ONE, 1 - 2**-24]), st.floats(0, 1, exclude_max=True)),
)
def test_an_index_of_weight_zero_is_never_drawn(weights: list[float], uniform: float):
    drawn = int(draw(torch.tensor(weights, dtype=torch.float64), torch.tensor(uniform, dtype=torch.float64)))
    assert weights[drawn] > 0
    assert drawn == naive_draw(weights, uniform)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_draw_at_the_ends(dtype: torch.dtype):
    weights = torch.tensor([[0, 0, 3, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 2]], dtype=dtype)
    assert draw(weights, torch.zeros(3)).tolist() == [2, 0, 6]
    assert draw(weights, torch.full((3,), ALMOST_ONE, dtype=torch.float64)).tolist() == [4, 0, 6]


def test_draw_follows_its_weights():
    weights = torch.tensor([1.0, 0.0, 2.0, 5.0])
    uniforms = torch.rand(100_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = torch.bincount(draw(weights.expand(100_000, 4), uniforms), minlength=4)
    assert_law(counts, weights.double() / 8)


# --- the law of what is committed -----------------------------------------------------------------------------------

DRAWS = 40_000
VOCAB = 4
STEPS = 3


def chi_square_bound(freedom: int, sigmas: float = 4.8) -> float:
    """Wilson and Hilferty's approximation of the quantile: a right law exceeds it less than once in a million runs."""
    return freedom * (1 - 2 / (9 * freedom) + sigmas * math.sqrt(2 / (9 * freedom))) ** 3


def chi_square(counts: Tensor, probs: Tensor) -> tuple[float, int]:
    """The statistic and its degrees of freedom; cells that expect fewer than 10 are put together."""
    expected = probs * counts.sum()
    rare = expected < 10
    counts = torch.cat([counts[~rare].double(), counts[rare].sum()[None].double()])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    used = expected > 0
    return float(((counts - expected)[used] ** 2 / expected[used]).sum()), int(used.sum()) - 1


def assert_law(counts: Tensor, probs: Tensor) -> None:
    assert counts[probs == 0].sum() == 0, "something impossible was committed"
    statistic, freedom = chi_square(counts, probs)
    assert freedom >= 2, "the law is too simple to tell anything"
    assert statistic < chi_square_bound(freedom)


def run_chain(
    target: Tensor, draft: Tensor, generator: torch.Generator, *, chosen: bool = False, claimed: Tensor | None = None
) -> Tensor:
    """Commit `STEPS` tokens of a Markov chain, by one verification and plain sampling of what it left open.

    ``target[c]`` and ``draft[c]`` are the laws of the token that follows ``c``; every request starts after token 0 and
    has 0 to `STEPS` drafts. ``claimed`` is what acceptance is told of the draft, if not the truth. Returns how often
    each sequence came.
    """
    counts = torch.randint(0, STEPS + 1, (DRAWS,), generator=generator)
    previous = torch.zeros(DRAWS, dtype=torch.int64)
    drafts, q, p = [], [], []
    for _ in range(STEPS):
        laws = draft[previous]
        token = laws.argmax(-1) if chosen else drawn_from(laws, generator)
        q.append((draft if claimed is None else claimed)[previous])
        p.append(target[previous])
        drafts.append(token)
        previous = token
    p.append(target[previous])
    uniforms = torch.rand(DRAWS, STEPS + 1, generator=generator, dtype=torch.float64)
    result = accept(torch.stack(drafts, 1), None if chosen else torch.stack(q, 1), torch.stack(p, 1), counts, uniforms)
    tokens = result.tokens[:, :STEPS].clone()
    for step in range(STEPS):
        previous = tokens[:, step - 1] if step else torch.zeros(DRAWS, dtype=torch.int64)
        plain = drawn_from(target[previous], generator)
        tokens[:, step] = torch.where(step > result.num_accepted, plain, tokens[:, step])
    code = sum(tokens[:, step] * VOCAB ** (STEPS - 1 - step) for step in range(STEPS))
    return torch.bincount(code, minlength=VOCAB**STEPS)


def chain_law(target: Tensor) -> Tensor:
    law = target[0]
    for _ in range(STEPS - 1):
        law = (law.view(-1, VOCAB, 1) * target).flatten()
    return law


def transitions(seed: int, zeros: float) -> Tensor:
    return random_probs((VOCAB, VOCAB), torch.Generator().manual_seed(seed), zeros)


REVERSED = torch.eye(VOCAB, dtype=torch.float64).flip(0) * 0.96 + 0.01
DRAFTS = {
    "another random law": transitions(11, 0.3),
    "uniform": torch.full((VOCAB, VOCAB), 1 / VOCAB, dtype=torch.float64),
    "nearly always the same wrong token": REVERSED,
    "only the last token": torch.eye(VOCAB, dtype=torch.float64)[-1].expand(VOCAB, VOCAB),
}


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS.keys())
@pytest.mark.parametrize(("seed", "zeros"), [(1, 0.0), (2, 0.4)])
def test_committed_tokens_follow_the_target_whatever_the_draft(draft: Tensor, seed: int, zeros: float):
    target = transitions(seed, zeros)
    assert_law(run_chain(target, draft, torch.Generator().manual_seed(100 + seed)), chain_law(target))


def test_committed_tokens_follow_the_target_when_the_draft_is_the_target():
    target = transitions(5, 0.3)
    assert_law(run_chain(target, target, torch.Generator().manual_seed(7)), chain_law(target))


@pytest.mark.parametrize("seed", [2, 6])
def test_committed_tokens_follow_the_target_when_drafts_are_chosen_not_drawn(seed: int):
    target = transitions(seed, 0.3)
    counts = run_chain(target, transitions(20 + seed, 0.3), torch.Generator().manual_seed(seed), chosen=True)
    assert_law(counts, chain_law(target))


def test_the_check_notices_a_q_that_is_not_the_drafts():
    """What recomputing q would do: the law is then no longer the target's, and the bound must say so."""
    target, draft = transitions(1, 0.0), DRAFTS["another random law"]
    near = 0.8 * draft + 0.2 / VOCAB
    counts = run_chain(target, draft, torch.Generator().manual_seed(9), claimed=near)
    statistic, freedom = chi_square(counts, chain_law(target))
    assert statistic > 2 * chi_square_bound(freedom)
