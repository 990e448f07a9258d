"""The sampler by itself: the distribution that it gives, one element at a time, and what it keeps of a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import BAD_WORDS, STOPS, assert_law, naive_law
from torch import Tensor

from vegas_spec import SamplingParams
from vegas_spec.engine.sampler import Sampler


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    def one_of(neutral: float, *others: float) -> float:
        return draw(st.sampled_from([neutral, *others]))

    return SamplingParams(
        temperature=one_of(1.0, 0.3, 2.5),
        top_k=int(one_of(0, -1, 1, 3, 8, 100)),
        top_p=one_of(1.0, 0.05, 0.5, 0.9),
        min_p=one_of(0.0, 0.02, 0.3, 1.0),
        repetition_penalty=one_of(1.0, 1.7, 0.5),
        presence_penalty=one_of(0.0, 1.0, -1.5),
        frequency_penalty=one_of(0.0, 0.7, -0.4),
        min_tokens=int(one_of(0, 2, 6)),
        logit_bias=draw(st.sampled_from([None, {6: 2.5, 1: -1.0}])),
        allowed_token_ids=draw(st.sampled_from([None, (5, 3, 1, 2, 6)])),
        bad_words=draw(st.sampled_from([(), ("listed in BAD_WORDS",)])),
    )


def make_sampler(params: SamplingParams, prompt: Sequence[int], seed: int = 0) -> Sampler:
    return Sampler(params, prompt, seed, STOPS, BAD_WORDS if params.bad_words else ())


@settings(deadline=None, max_examples=150)
@given(params=sampling_params(), data=st.data())
def test_the_distribution(params: SamplingParams, data: st.DataObject) -> None:
    vocab = data.draw(st.integers(7, 9))
    tokens = st.lists(st.integers(0, vocab - 1), max_size=4)
    prompt, drafts = data.draw(tokens), data.draw(tokens)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    sampler = make_sampler(params, prompt)
    said: list[int] = []
    for committed in data.draw(st.lists(tokens, max_size=3)):
        sampler.commit(committed)
        said += committed
        first = data.draw(st.integers(0, len(drafts)))
        logits = torch.randn(len(drafts) + 1 - first, vocab, generator=generator) * 3
        given_logits = logits.clone()

        law = sampler.distribution(logits, drafts, first)

        for row, expected_logits in enumerate(logits.tolist()):
            expected = naive_law(expected_logits, params, prompt, [*said, *drafts[: first + row]])
            torch.testing.assert_close(law[row].tolist(), expected, rtol=1e-4, atol=1e-6)
        assert torch.equal(logits, given_logits)


@settings(deadline=None, max_examples=100)
@given(params=sampling_params(), data=st.data())
def test_penalties_are_those_of_a_history_read_anew(params: SamplingParams, data: st.DataObject) -> None:
    """To the last bit: what is kept for a request gives what would be made of all its tokens at each row."""
    tokens = st.lists(st.integers(0, 11), max_size=9)
    prompt, pieces, drafts = data.draw(tokens), data.draw(st.lists(tokens, max_size=4)), data.draw(tokens)
    logits = torch.randn(len(drafts) + 1, 12, generator=torch.Generator().manual_seed(0)) * 3
    sampler = make_sampler(params, prompt)
    said: list[int] = []
    for piece in [[], *pieces]:
        sampler.commit(piece)
        said += piece
        rows = sampler.penalised(logits, drafts)
        for row in range(len(rows)):
            anew = make_sampler(params, prompt)
            anew.commit([*said, *drafts[:row]])
            assert torch.equal(rows[row], anew.penalised(logits[row : row + 1], [])[0])


def test_penalties_read_a_long_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(20_000))
    sampler = Sampler(SamplingParams(repetition_penalty=1.3, frequency_penalty=0.2), prompt, 0)
    logits = torch.zeros(3, 30_000)
    sampler.penalised(logits, [7, 25_000])
    sizes, make = [0], torch.tensor

    def counted(values: Any, **options: Any) -> Tensor:
        sizes.append(len(values) if isinstance(values, list) else 1)
        return make(values, **options)

    monkeypatch.setattr(torch, "tensor", counted)
    for token in range(19_995, 20_015):
        sampler.commit([token, token])
        sampler.penalised(logits, [token, 29_000])
    assert sum(sizes) < 20 * 10


def test_top_p_where_the_nucleus_is_wide() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5000) * 0.1  # the likeliest 1,024 tokens hold far less than 0.9
    logits[1, 7] = 30.0
    law = Sampler(SamplingParams(top_p=0.9), [], 0).distribution(logits, [0])
    for row in range(2):
        expected = naive_law(logits[row].double().tolist(), SamplingParams(top_p=0.9), [], [])
        differs = (law[row] > 0) != (torch.tensor(expected) > 0)
        assert int(differs.sum()) <= 1  # the border token: float32 sums
        torch.testing.assert_close(law[row].double(), torch.tensor(expected).double(), rtol=1e-3, atol=2e-4)


def test_equal_logits_at_the_border_of_top_k_are_all_kept() -> None:
    law = Sampler(SamplingParams(top_k=2), [], 0).distribution(torch.tensor([[1.0, 3.0, 1.0, 0.0]]), [])
    assert (law > 0).tolist() == [[True, True, True, False]]


def test_a_choice_is_drawn_from_the_distribution_it_comes_with() -> None:
    params = SamplingParams(top_k=3, presence_penalty=1.5)
    sampler = Sampler(params, [1], seed=3)
    logits = torch.tensor([0.3, 0.1, 0.2, -2.0, 0.25])
    choices = [sampler.choose(logits, [4, 0]) for _ in range(3000)]
    law = choices[0][1]
    assert law is not None
    expected = naive_law(logits.tolist(), params, [1], [4, 0])
    torch.testing.assert_close(law.tolist(), expected, rtol=1e-4, atol=1e-6)
    assert_law(Counter((token,) for token, _ in choices), {(token,): p for token, p in enumerate(expected)})


def test_greedy_is_chosen_not_drawn() -> None:
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=2.0), [], 0)
    assert sampler.choose(torch.tensor([0.0, 2.0, 1.0]), []) == (1, None)
    assert sampler.choose(torch.tensor([0.0, 2.0, 1.0]), [1]) == (2, None)
