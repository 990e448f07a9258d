"""Sampling has the target's law, whatever drafted: the joint law of the first tokens, and the sampler by itself.

Laws are compared by chi-square with the exact one, which is computed by following every sequence. Seeds are fixed, so a
test gives the same answer at every run; a correct sampler fails one with a new seed with probability `FALSE_ALARM`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from engine_cases import as_prompts, generated
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vegas_spec import LLM, SamplingParams
from vegas_spec.engine import backend
from vegas_spec.engine.backend import Backend
from vegas_spec.engine.sampler import Sampler
from vegas_spec.policies import keys, quest, specextend

FALSE_ALARM = 1e-5

# --- the sampler, one element at a time -----------------------------------------------------------------------------


STOPS, BAD_WORDS = [0, 2], [[1], [3, 4], [2, 2, 1]]


def naive_penalised(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], said: Sequence[int]
) -> list[float]:
    result = []
    for token, logit in enumerate(logits):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            logit = -math.inf
        logit += (params.logit_bias or {}).get(token, 0.0)
        if token in STOPS and len(said) < params.min_tokens:
            logit = -math.inf
        if token in prompt or token in said:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        times = list(said).count(token)
        logit -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
        now = [*said, token]
        if params.bad_words and any(now[-len(word) :] == word for word in BAD_WORDS):
            logit = -math.inf
        result.append(logit)
    return result


def naive_law(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], said: Sequence[int]
) -> list[float]:
    """What the next token is drawn from, by the definition of each option in turn (no two logits are equal)."""
    scaled = [logit / params.temperature for logit in naive_penalised(logits, params, prompt, said)]
    best = max(scaled)
    assert best > -math.inf
    weights = [math.exp(value - best) for value in scaled]
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    ranked = sorted(range(len(weights)), key=lambda token: scaled[token], reverse=True)
    kept = set(ranked[: params.top_k] if params.top_k > 0 else ranked)
    weights = [weight if token in kept else 0.0 for token, weight in enumerate(weights)]
    total, reached = sum(weights), 0.0
    for token in ranked:
        if reached >= params.top_p * total and params.top_p < 1:
            weights[token] = 0.0
        reached += weights[token]
    return [weight / sum(weights) for weight in weights]


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


# --- comparing laws -------------------------------------------------------------------------------------------------

Law = dict[tuple[int, ...], float]


def exact_law(
    length: int, next_logits: Callable[[tuple[int, ...]], Sequence[float]], params: SamplingParams, prompt: list[int]
) -> Law:
    """The joint law of the first `length` tokens."""
    law: Law = {(): 1.0}
    for _ in range(length):
        longer: Law = {}
        for said, probability in law.items():
            for token, p in enumerate(naive_law(next_logits(said), params, prompt, said)):
                if p > 0:
                    longer[*said, token] = probability * p
        law = longer
    return law


def chi_square(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """The probability that a sample of this law is at least as far from it; rare sequences are counted together."""
    total = sum(counts.values())
    cells: list[tuple[float, float]] = []
    rest_expected = rest_seen = 0.0
    for sequence, probability in law.items():
        expected, seen = probability * total, counts[sequence]
        if expected < 5:
            rest_expected, rest_seen = rest_expected + expected, rest_seen + seen
        else:
            cells.append((expected, seen))
    if rest_expected >= 5:
        cells.append((rest_expected, rest_seen))
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    if len(cells) < 2:
        return 1.0
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def assert_law(counts: Counter[tuple[int, ...]], law: Law) -> None:
    impossible = {sequence for sequence in counts if law.get(sequence, 0.0) < 1e-9}
    assert not impossible, f"sequences of probability zero were drawn: {impossible}"
    assert chi_square(counts, law) > FALSE_ALARM


def test_the_comparison_sees_a_wrong_law() -> None:
    law = {(token,): 1 / 4 for token in range(4)}
    assert_law(Counter({(0,): 251, (1,): 240, (2,): 262, (3,): 247}), law)
    with pytest.raises(AssertionError):
        assert_law(Counter({(0,): 310, (1,): 190, (2,): 250, (3,): 250}), law)
    with pytest.raises(AssertionError):
        assert_law(Counter({(0,): 500, (9,): 500}), law)


# --- the engine with a model that is a table ------------------------------------------------------------------------

VOCAB = 5
PROMPT = [1, 3]


@functools.cache
def small_model(vocab: int, layers: int, scale: float) -> Any:
    config = transformers.Qwen3Config(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def table(seed: int) -> Tensor:
    """Logits of the next token by the position of the last token and by itself."""
    return torch.randn(16, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5


TARGET, DRAFT = table(0), table(0) * 0.5 + table(1) * 0.7


class Numbers:
    """Reads and writes token ids."""

    eos_token_id = None

    def __call__(self, text: str, **options: Any) -> Any:
        return SimpleNamespace(input_ids=[int(number) for number in text.split()])

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return " ".join(map(str, tokens))

    def convert_ids_to_tokens(self, token: int) -> str:
        return str(token)


def table_llm(**options: Any) -> LLM:
    """An engine whose model says `TARGET` where attention is full and `DRAFT` where it drafts."""
    llm = LLM(small_model(VOCAB, 1, 0.2), Numbers(), max_num_seqs=4000, policy="dense", **options)
    llm.model.module.generation_config.eos_token_id = STOPS

    def forward(token_ids: Sequence[int], positions: Sequence[int], backend: Backend, rows: Sequence[int]) -> Tensor:
        logits = DRAFT if backend.kind == "draft" else TARGET
        return logits[list(positions), list(token_ids)][list(rows)]

    llm.model.forward = forward  # type: ignore[method-assign]
    return llm


def sample(llm: LLM, params: SamplingParams, prompt: list[int], length: int, count: int) -> Counter[tuple[int, ...]]:
    # One token more is asked for than is looked at, so that the last one looked at is drafted too.
    each = dataclasses.replace(params, seed=None, max_tokens=length + 1, ignore_eos=True)
    outputs = llm.generate(as_prompts([prompt] * count), each)
    drafted = sum(output.stats.drafted for output in outputs)
    accepted = sum(output.stats.accepted for output in outputs)
    assert drafted >= count * (length - 1) * 0.3
    assert accepted > 0
    return Counter(tuple(tokens[:length]) for tokens in generated(outputs))


def uniform_draft(sampler: Sampler, logits: Tensor, drafts: Sequence[int]) -> tuple[int, Tensor]:
    size = logits.shape[-1]
    return int(sampler.uniforms(1) * size), torch.full((size,), 1 / size)


def one_hot_draft(sampler: Sampler, logits: Tensor, drafts: Sequence[int]) -> tuple[int, Tensor]:
    token = logits.argmax()
    return int(token), torch.zeros_like(logits).scatter(0, token, 1.0)


def own_draft(sampler: Sampler, logits: Tensor, drafts: Sequence[int]) -> tuple[int, Tensor | None]:
    return CHOOSE(sampler, logits, drafts)


CHOOSE = Sampler.choose
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 2},
    {"top_p": 0.7},
    {"min_p": 0.3},
    {"repetition_penalty": 2.5},
    {"presence_penalty": 2.0},
    {"frequency_penalty": -1.5},
    {"min_tokens": 2},
    {"logit_bias": {0: -2.0, 3: 1.5}},
    {"allowed_token_ids": [0, 2, 3]},
    {"bad_words": ["1", "3 4", "2 2 1"], "min_tokens": 1, "repetition_penalty": 1.3},
    {"temperature": 0.7, "top_k": 4, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.5, "frequency_penalty": 1.0},
]


def name_of(options: dict[str, Any]) -> str:
    return "+".join(f"{name}={value}" for name, value in options.items()) or "plain"


@pytest.mark.parametrize("draft", [own_draft, uniform_draft, one_hot_draft])
@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
def test_the_first_tokens_have_the_targets_law(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], draft: Callable[..., Any]
) -> None:
    """Drafts by another model, uniform ones, and chosen ones: the law of three tokens is the target's."""
    monkeypatch.setattr(Sampler, "choose", draft)
    seed = 100 + OPTIONS.index(options)
    assert_law(*sample_and_law(SamplingParams(**options), seed, 700))


def sample_and_law(params: SamplingParams, seed: int, count: int) -> tuple[Counter[tuple[int, ...]], Law]:
    def next_logits(said: tuple[int, ...]) -> list[float]:
        last = said[-1] if said else PROMPT[-1]
        return TARGET[len(PROMPT) - 1 + len(said), last].tolist()

    llm = table_llm(seed=seed, num_speculative_tokens=2)
    return sample(llm, params, PROMPT, 3, count), exact_law(3, next_logits, params, PROMPT)


def test_drafts_of_another_law_than_they_claim_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities without penalties for drafts with them: what must not be done, and what these tests must see."""

    def claims_another_law(sampler: Sampler, logits: Tensor, drafts: Sequence[int]) -> tuple[int, Tensor | None]:
        token, _ = CHOOSE(sampler, logits, drafts)
        return token, torch.softmax(logits, -1)

    monkeypatch.setattr(Sampler, "choose", claims_another_law)
    params = SamplingParams(repetition_penalty=2.5, presence_penalty=2.0, temperature=0.6)
    assert chi_square(*sample_and_law(params, 0, 1500)) < FALSE_ALARM / 100


# --- the engine with a model ----------------------------------------------------------------------------------------

LONG_PROMPT = torch.randint(0, 6, (24,), generator=torch.Generator().manual_seed(3)).tolist()
MODEL_VOCAB, MODEL_SCALE = 6, 0.6


@functools.cache
def model_logits(said: tuple[int, ...]) -> list[float]:
    model = copy_of_small_model()
    with torch.inference_mode():
        logits = model(torch.tensor([[*LONG_PROMPT, *said]]), use_cache=False).logits
    return logits[0, -1].double().tolist()


@functools.cache
def copy_of_small_model() -> Any:
    """The model as transformers runs it: an engine takes the other one over."""
    import copy

    model = copy.deepcopy(small_model(MODEL_VOCAB, 2, MODEL_SCALE))
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize(
    ("options", "draft"),
    [
        ({}, own_draft),
        ({"temperature": 0.8, "top_p": 0.9, "presence_penalty": 1.0}, own_draft),
        ({"min_p": 0.1, "repetition_penalty": 1.8, "top_k": 4}, own_draft),
        ({"temperature": 1.5}, uniform_draft),
        ({"top_k": 3, "frequency_penalty": 1.0}, one_hot_draft),
    ],
)
def test_a_model_that_drafts_over_two_entries(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], draft: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Sampler, "choose", draft)
    params = SamplingParams(**options)
    llm = LLM(
        small_model(MODEL_VOCAB, 2, MODEL_SCALE),
        max_num_seqs=2000,
        seed=5,
        num_speculative_tokens=2,
        kv_budget=0.01,
        kv_budget_min=2,
    )
    law = exact_law(3, model_logits, params, LONG_PROMPT)
    assert_law(sample(llm, params, LONG_PROMPT, 3, 400), law)


@pytest.mark.parametrize("policy", ["dense", "stream", "quest", "specextend", "oracle"])
def test_a_baseline_that_drafts_over_four_entries(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    for module in (keys, quest, backend):
        monkeypatch.setattr(module, "PAGE_SIZE", 4)
    monkeypatch.setattr(specextend, "CHUNK_SIZE", 4)
    params = SamplingParams(temperature=1.5, top_p=0.95, presence_penalty=1.0)
    llm = LLM(
        small_model(MODEL_VOCAB, 2, MODEL_SCALE),
        max_num_seqs=2000,
        seed=6,
        num_speculative_tokens=2,
        policy=policy,
        kv_budget=0.01,
        kv_budget_min=4,
    )
    law = exact_law(3, model_logits, params, LONG_PROMPT)
    assert_law(sample(llm, params, LONG_PROMPT, 3, 400), law)


def test_drafting_over_two_entries_is_not_the_targets_law() -> None:
    """Else the test above would show little."""
    llm = LLM(small_model(MODEL_VOCAB, 2, MODEL_SCALE), kv_budget=0.01, kv_budget_min=2)
    outputs = llm.generate(as_prompts([LONG_PROMPT] * 4), SamplingParams(max_tokens=40))
    drafted, accepted = (sum(getattr(output.stats, name) for output in outputs) for name in ("drafted", "accepted"))
    assert 0.05 * drafted < accepted < 0.8 * drafted


# --- seeds ----------------------------------------------------------------------------------------------------------


def model_llm(**options: Any) -> LLM:
    return LLM(small_model(MODEL_VOCAB, 2, MODEL_SCALE), **{"kv_budget_min": 4, "kv_budget": 0.1, **options})


def test_a_seed_gives_the_same_tokens_alone_and_in_any_company() -> None:
    prompts = [LONG_PROMPT[place:] for place in (0, 3, 23, 10)]
    params = [SamplingParams(seed=seed, max_tokens=20, presence_penalty=0.5) for seed in (1, 2, 3, 1)]
    together = generated(model_llm().generate(as_prompts(prompts), params))
    alone = [
        generated(model_llm(seed=9).generate(as_prompts([prompt]), each))[0]
        for prompt, each in zip(prompts, params, strict=True)
    ]
    assert together == alone
    in_turns = model_llm(max_num_seqs=2).generate(as_prompts(prompts[::-1]), params[::-1])
    assert generated(in_turns) == alone[::-1]
    other = [SamplingParams(seed=seed + 7, max_tokens=20, presence_penalty=0.5) for seed in (1, 2, 3, 1)]
    assert generated(model_llm().generate(as_prompts(prompts), other)) != alone


def test_without_a_seed_the_engines_own_seed_counts() -> None:
    def two_runs(seed: int) -> list[list[list[int]]]:
        llm = model_llm(seed=seed)
        params = SamplingParams(max_tokens=20)
        return [generated(llm.generate(as_prompts([LONG_PROMPT] * 2), params)) for _ in range(2)]

    first = two_runs(0)
    assert two_runs(0) == first
    assert two_runs(1) != first
    assert len({tuple(tokens) for run in first for tokens in run}) == 4  # requests and calls differ from each other


def test_global_randomness_is_neither_used_nor_changed() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = generated(model_llm().generate(as_prompts([LONG_PROMPT]), SamplingParams(max_tokens=10)))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert generated(model_llm().generate(as_prompts([LONG_PROMPT]), SamplingParams(max_tokens=10))) == first


@pytest.mark.parametrize("left", [1, 2, 3])
def test_as_many_numbers_as_are_needed(left: int) -> None:
    """All sequences of one draft and its verification for a table of probabilities that allows only one of them."""
    certain = torch.full((16, VOCAB, VOCAB), -1e9)
    for position, last in itertools.product(range(16), range(VOCAB)):
        certain[position, last, (last + left) % VOCAB] = 0.0
    llm = table_llm()
    llm.model.forward = (  # type: ignore[method-assign]
        lambda token_ids, positions, step, rows: certain[list(positions), list(token_ids)][list(rows)]
    )
    output = llm.generate(as_prompts([[0]]), SamplingParams(max_tokens=9, ignore_eos=True))[0]
    assert output.outputs[0].token_ids == [left * (place + 1) % VOCAB for place in range(9)]
    assert output.stats.accepted == output.stats.drafted > 0
