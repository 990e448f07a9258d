"""Sampling has the target's law, whatever drafted: the joint law of the first tokens.

Laws are compared by chi-square with the exact one, which is computed by following every sequence. Seeds are fixed, so a
test gives the same answer at every run; a correct sampler fails one with a new seed with probability `FALSE_ALARM`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from engine_cases import as_prompts, generated
from laws import FALSE_ALARM, STOPS, Law, assert_law, chi_square, exact_law
from torch import Tensor

from vegas_spec import LLM, SamplingParams
from vegas_spec.engine import backend
from vegas_spec.engine.backend import Backend
from vegas_spec.engine.sampler import Sampler
from vegas_spec.policies import keys, quest, specextend


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
