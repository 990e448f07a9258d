"""What attention reads, writes and collects in one forward pass, against loops in float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import exp, sqrt, tanh
from typing import Any, ClassVar

import pytest
import torch
from engine_cases import VEGAS, as_prompts, describe, generated, greedy, make_llm, reference
from tiny_models import random_prompt
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.engine.attention import AttentionParams, CausalMask, RowSpan, attend
from vegas_spec.engine.attention_torch import TorchBackend
from vegas_spec.engine.backend import Backend
from vegas_spec.engine.engine import Engine
from vegas_spec.engine.kv_cache import KVCache, LayerSpec
from vegas_spec.engine.request import Request
from vegas_spec.policies import Drafting, Policy, Verified
from vegas_spec.policies.vegas import VegasPolicy

HEADS, KV_HEADS, DIM, LENGTH = 4, 2, 8, 48
WINDOW = 5
LAYERS = [LayerSpec(layer, HEADS, KV_HEADS, DIM, WINDOW if layer == 1 else None) for layer in range(3)]
CPU = torch.device("cpu")


class Fixed(Policy):
    """Answers what a test wants."""

    name = "fixed"
    summary = "what a test wants"
    answer: ClassVar[list[list[int]]] = []
    scores_seen: ClassVar[list[Tensor | None]] = []

    def select(self, verified: Verified) -> Tensor:
        self.scores_seen.append(verified.scores)
        return torch.tensor([[self.answer] * len(verified.slots)])


class FixedByStep(Fixed):
    """The same, at each step."""

    per_step = True
    asked: ClassVar[list[tuple[int, Drafting]]] = []

    def select_step(self, layer: int, drafting: Drafting) -> Tensor:
        self.asked.append((layer, drafting))
        return torch.tensor([self.answer])


class ScoredFixed(Fixed):
    """Looks at scores, and answers what a test wants."""

    scores = True


def backend_of(cache: KVCache, policy: type[Policy] | str = "vegas", **options: Any) -> TorchBackend:
    name = policy if isinstance(policy, str) else f"{policy.__module__}:{policy.__name__}"
    return TorchBackend(cache, VegasConfig(policy=name, num_speculative_tokens=4, kv_budget_min=3, **options))


def params(layer: int = 0, softcap: float | None = None, sinks: Tensor | None = None) -> AttentionParams:
    return AttentionParams(1 / sqrt(DIM), LAYERS[layer].sliding_window, softcap, sinks)


def random_cache(slots: int = 2) -> KVCache:
    torch.manual_seed(0)
    cache = KVCache(LAYERS, slots, LENGTH, torch.float32, CPU)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    return cache


def new_rows(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(HEADS, rows, DIM), torch.randn(KV_HEADS, rows, DIM), torch.randn(KV_HEADS, rows, DIM)


def naive_attention(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], head: int, params: AttentionParams
) -> Tensor:
    """Attention of one query row of one head over the given keys, in float64."""
    logits = [float(query.double() @ key.double()) * params.scale for key in keys]
    if params.softcap is not None:
        logits = [params.softcap * tanh(logit / params.softcap) for logit in logits]
    weights = [exp(logit) for logit in logits]
    total = sum(weights) + (exp(float(params.sinks[head])) if params.sinks is not None else 0.0)
    return sum((value.double() * (weight / total) for weight, value in zip(weights, values, strict=True)))  # type: ignore[return-value]


VARIANTS = [{}, {"softcap": 2.0}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}]


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=["plain", "softcap", "sinks"])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("rows", [3, 90])  # 90 rows of two heads take the other path
def test_attend(variant: dict[str, Any], rows: int, window: int | None) -> None:
    torch.manual_seed(2)
    keys = rows + 7
    query, key, value = (torch.randn(heads, count, DIM) for heads, count in ((4, rows), (2, keys), (2, keys)))
    out = attend(query, key, value, CausalMask(RowSpan(0, 7, rows), 0, window, CPU), params(**variant))
    for row, head in itertools.product({0, rows // 2, rows - 1}, range(HEADS)):
        seen = [at for at in range(keys) if 7 + row - (window or 1000) < at <= 7 + row]
        kv = head // 2
        expected = naive_attention(
            query[head, row], [key[kv, at] for at in seen], [value[kv, at] for at in seen], head, params(**variant)
        )
        torch.testing.assert_close(out[row, head].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_the_mask(window: int | None) -> None:
    mask = CausalMask(RowSpan(0, 5, 4), 2, window, CPU)
    assert mask.shape == (4, 7)
    for row, key in itertools.product(range(4), range(7)):
        distance = (5 + row) - (2 + key)
        seen = 0 <= distance < (window or 1000)
        assert bool(mask.visible[row, key]) == seen
        assert mask.bias(torch.float32, 2)[[row, 4 + row], key].tolist() == [0.0 if seen else -torch.inf] * 2


@pytest.mark.parametrize("kind", ["prompt", "verify"])
@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("rows", [1, 4])
def test_rows_read_their_own_request_up_to_each(layer: int, rows: int, kind: Any) -> None:
    cache = random_cache()
    batch = [RowSpan(1, 9, rows), RowSpan(0, 0, 2)]
    query, key, value = new_rows(rows + 2)
    for slot, stop in ((1, 9 + rows), (0, 2)):  # whatever lies beyond the rows is never read
        cache.keys[layer][slot, :, stop:] = torch.nan
        cache.values[layer][slot, :, stop:] = torch.nan
    out = backend_of(cache).begin(kind, batch, [3, 1]).attend(layer, query, key, value, params(layer))
    for place, head in itertools.product(range(rows + 2), range(HEADS)):
        slot, position = (1, 9 + place) if place < rows else (0, place - rows)
        first = 0 if layer != 1 else max(0, position - WINDOW + 1)
        keys, values = (kv[layer][slot, head // 2, first : position + 1] for kv in (cache.keys, cache.values))
        expected = naive_attention(query[head, place], list(keys), list(values), head, params(layer))
        torch.testing.assert_close(out[place, head].double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(cache.keys[layer][1, :, 9 : 9 + rows], key[:, :rows])
    assert torch.equal(cache.values[layer][0, :, :2], value[:, rows:])


PREFIX, STOP = 20, 23
"""Of the tests below: 23 tokens are in the cache, of which three came since the prefix."""


def verified_backend(cache: KVCache, policy: type[Policy], **options: Any) -> TorchBackend:
    """A backend after a verification of four rows in slot 1, of whose three drafts all were accepted."""
    backend = backend_of(cache, policy, **options)
    backend.begin("verify", [RowSpan(1, PREFIX - 1, 4)], [3])
    for layer in range(3):
        backend.attend(layer, *new_rows(4), params(layer))
    return backend


@pytest.mark.parametrize("variant", VARIANTS, ids=["plain", "softcap", "sinks"])
@pytest.mark.parametrize("shared", [False, True], ids=["kv_head", "layer"])
@pytest.mark.parametrize("policy", [Fixed, FixedByStep], ids=["once", "by step"])
def test_a_draft_reads_the_selected_and_the_recent_entries_alone(
    policy: type[Fixed], shared: bool, variant: dict[str, Any]
) -> None:
    cache = random_cache()
    Fixed.answer = [[0, 7, 19]] if shared else [[0, 7, 19], [3, 4, 11]]
    keep = [{*row, *range(PREFIX, STOP)} for row in (Fixed.answer * 2)[:2]]
    backend = verified_backend(cache, policy)
    exact_keys, exact_values = cache.keys[0].clone(), cache.values[0].clone()
    for slot, head, position in itertools.product(range(2), range(KV_HEADS), range(LENGTH)):
        if slot == 0 or position not in keep[head]:
            cache.keys[0][slot, head, position] = torch.nan
            cache.values[0][slot, head, position] = torch.nan
    assert backend.select([3], [STOP]).counts == [3]
    FixedByStep.asked.clear()

    drafted_keys: list[Tensor] = []
    drafted_values: list[Tensor] = []
    for step in range(3):
        query, key, value = (tensor + step for tensor in new_rows(1))
        drafted_keys.append(key[:, 0])
        drafted_values.append(value[:, 0])
        backend.begin("draft", [RowSpan(1, STOP + step, 1)])
        out = backend.attend(0, query, key, value, params(**variant))
        for head in range(HEADS):
            kv = head // 2
            keys = [exact_keys[1, kv, at] for at in sorted(keep[kv])] + [key[kv] for key in drafted_keys]
            values = [exact_values[1, kv, at] for at in sorted(keep[kv])] + [value[kv] for value in drafted_values]
            expected = naive_attention(query[head, 0], keys, values, head, params(**variant))
            torch.testing.assert_close(out[0, head].double(), expected, rtol=1e-5, atol=1e-5)
        if policy is FixedByStep:
            layer, drafting = FixedByStep.asked[-1]
            assert (layer, drafting.width) == (0, 3)
            assert [each.tolist() for each in (drafting.prefix_lens, drafting.budgets)] == [[PREFIX], [3]]
            assert drafting.seq_lens.tolist() == [STOP + step + 1]
            assert torch.equal(drafting.queries.query, query)


@pytest.mark.parametrize("policy", [Fixed, FixedByStep], ids=["once", "by step"])
def test_a_draft_of_a_sliding_layer_reads_its_window(policy: type[Fixed]) -> None:
    cache = random_cache()
    Fixed.answer = [[0, 7, 19]]
    backend = verified_backend(cache, policy)
    backend.select([3], [STOP])
    cache.keys[1][1, :, : STOP - WINDOW + 1] = torch.nan
    cache.values[1][1, :, : STOP - WINDOW + 1] = torch.nan
    query, key, value = new_rows(1)
    out = backend.begin("draft", [RowSpan(1, STOP, 1)]).attend(1, query, key, value, params(1))
    for head in range(HEADS):
        keys, values = (kv[1][1, head // 2, STOP - WINDOW + 1 : STOP + 1] for kv in (cache.keys, cache.values))
        assert torch.equal(keys[-1], key[head // 2, 0])
        expected = naive_attention(query[head, 0], list(keys), list(values), head, params(1))
        torch.testing.assert_close(out[0, head].double(), expected, rtol=1e-5, atol=1e-5)


# --- scores ---------------------------------------------------------------------------------------------------------


def naive_scores(
    query: Tensor, key: Tensor, start: int, chosen: Sequence[int], options: dict[str, Any], params: AttentionParams
) -> list[list[float]]:
    """Scores of ``[0, start]`` by the chosen rows, in float64."""
    groups = KV_HEADS if options["granularity"] == "kv_head" else 1
    result = [[0.0] * (start + 1) for _ in range(groups)]
    for row, head in itertools.product(chosen, range(HEADS)):
        logits = [
            float(query[head, row].double() @ key[head // 2, at].double()) * params.scale
            for at in range(start + row + 1)
        ]
        total = sum(exp(logit) for logit in logits)
        total += exp(float(params.sinks[head])) if params.sinks is not None else 0.0
        for at in range(start + 1):
            group = head // (HEADS // groups)
            result[group][at] += exp(logits[at]) / total if options["score"] == "weight" else logits[at]
    return result


@pytest.mark.parametrize("variant", VARIANTS, ids=["plain", "softcap", "sinks"])
@pytest.mark.parametrize("options", VEGAS, ids=describe)
def test_collected_scores(options: dict[str, Any], variant: dict[str, Any]) -> None:
    cache = random_cache()
    batch, num_accepted = [RowSpan(1, 11, 4), RowSpan(0, 3, 1)], [2, 0]
    backend = backend_of(cache, ScoredFixed, **options)
    Fixed.answer, Fixed.scores_seen[:] = [[0]], []
    backend.begin("verify", batch, [3, 3])
    rows = {layer: tuple(tensor * (1 + layer) for tensor in new_rows(5)) for layer in range(3)}
    for layer in range(3):
        backend.attend(layer, *rows[layer], params(layer, **variant))
    backend.select(num_accepted, [14, 4])
    [scores] = Fixed.scores_seen
    assert scores is not None

    groups = KV_HEADS if options["granularity"] == "kv_head" else 1
    assert scores.shape == (2, 2, groups, 12)  # the two layers with full attention; keys of the longer prefix
    for (index, layer), (place, span) in itertools.product(enumerate((0, 2)), enumerate(batch)):
        own = slice(0, 4) if place == 0 else slice(4, 5)
        last = span.count - 1
        chosen = {"ends": sorted({0, last}), "all": range(span.count), "last": [num_accepted[place]]}[options["rows"]]
        expected = naive_scores(
            rows[layer][0][:, own], cache.keys[layer][span.slot], span.start, chosen, options, params(layer, **variant)
        )
        own_scores = scores[index, place, :, : span.start + 1].double()
        torch.testing.assert_close(own_scores, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-5)


# --- the engine's use of them ---------------------------------------------------------------------------------------

PROMPTS = [random_prompt(length, seed=length) for length in (1, 40, 23)]


@pytest.mark.parametrize("options", [{}, {"rows": "last"}, {"granularity": "layer", "rows": "all"}], ids=describe)
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_the_prefix_ends_at_the_first_verified_row(
    monkeypatch: pytest.MonkeyPatch, family: str, options: dict[str, Any]
) -> None:
    committed: list[list[int]] = []
    verify, select = Engine.verify, VegasPolicy.select

    def noting(self: Engine, backend: Backend, batch: list[Request], *rest: Any) -> Any:
        committed.append([len(request.token_ids) for request in batch])
        return verify(self, backend, batch, *rest)

    def checked(self: VegasPolicy, verified: Verified) -> Tensor:
        assert verified.prefix_lens.tolist() == committed[-1]
        chosen = select(self, verified)
        for place, length in enumerate(committed[-1]):
            sets = [row[row >= 0].tolist() for row in chosen[:, place].flatten(0, 1)]
            assert all(len(row) == min(length, max(4, -(-length // 10))) for row in sets)
            assert all(row == sorted(set(row)) and row[0] >= 0 and row[-1] < length for row in sets)
        return chosen

    monkeypatch.setattr(Engine, "verify", noting)
    monkeypatch.setattr(VegasPolicy, "select", checked)
    outputs = make_llm(family, **options).generate(as_prompts(PROMPTS), greedy(20))
    assert len(committed) > 5
    assert generated(outputs) == [reference(family, prompt, 20) for prompt in PROMPTS]


@pytest.mark.parametrize("policy", ["vegas", "stream", "specextend"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "gpt_oss"])
def test_unselected_entries_are_not_read_by_drafts(monkeypatch: pytest.MonkeyPatch, family: str, policy: str) -> None:
    """All of the cache but the windows of sliding layers is poisoned while drafting."""
    prompts = as_prompts(PROMPTS)
    llm = make_llm(family, kv_budget_min=16, policy=policy)
    clean = llm.generate(prompts, greedy(16))
    draft = Engine.draft

    def poisoned(self: Engine, backend: Backend, batch: list[Request]) -> None:
        cache = backend.cache
        saved = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
        for layer, request in itertools.product(cache.layers, batch):
            window = layer.sliding_window
            hidden = slice(None) if window is None else slice(0, max(0, len(request.token_ids) - window))
            cache.keys[layer.index][request.slot, :, hidden] = torch.nan
            cache.values[layer.index][request.slot, :, hidden] = torch.nan
        draft(self, backend, batch)
        for tensor, original in zip((*cache.keys, *cache.values), saved, strict=True):
            tensor.copy_(original)

    monkeypatch.setattr(Engine, "draft", poisoned)
    outputs = llm.generate(prompts, greedy(16))
    assert generated(outputs) == generated(clean)
    for output, expected in zip(outputs, clean, strict=True):
        assert output.stats.accepted_per_position == expected.stats.accepted_per_position
    assert any(output.stats.accepted for output in outputs)


@pytest.mark.parametrize("options", [{"policy": name} for name in ("vegas", "dense", "quest")], ids=describe)
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "gpt_oss"])
def test_verification_writes_over_what_drafting_left(
    monkeypatch: pytest.MonkeyPatch, family: str, options: dict[str, Any]
) -> None:
    verify = Engine.verify

    def poisoned(self: Engine, backend: Backend, batch: list[Request], *rest: Any) -> Any:
        cache = backend.cache
        for tensor, request in itertools.product((*cache.keys, *cache.values), batch):
            tensor[request.slot, :, len(request.token_ids) - 1 :] = torch.nan
        return verify(self, backend, batch, *rest)

    monkeypatch.setattr(Engine, "verify", poisoned)
    outputs = make_llm(family, kv_budget_min=16, **options).generate(as_prompts(PROMPTS), greedy(16))
    assert generated(outputs) == [reference(family, prompt, 16) for prompt in PROMPTS]


def test_a_slot_is_used_again_without_what_the_last_request_left(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = Engine.prefill

    def poisoned(self: Engine, backend: Backend, request: Request) -> Any:
        for tensor in (*backend.cache.keys, *backend.cache.values):
            tensor[request.slot] = torch.nan
        return prefill(self, backend, request)

    monkeypatch.setattr(Engine, "prefill", poisoned)
    outputs = make_llm("gemma3_text", max_num_seqs=1).generate(as_prompts(PROMPTS), greedy(12))
    assert generated(outputs) == [reference("gemma3_text", prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("attention", ["torch", "kernels"])
@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_what_was_never_written_is_never_read(monkeypatch: pytest.MonkeyPatch, family: str, attention: str) -> None:
    if attention == "kernels":
        pytest.importorskip("triton")
    init = KVCache.__init__

    def poisoned(self: KVCache, *arguments: Any) -> None:
        init(self, *arguments)
        for tensor in (*self.keys, *self.values):
            tensor.fill_(torch.nan)

    monkeypatch.setattr(KVCache, "__init__", poisoned)
    outputs = make_llm(family, attention=attention, max_num_seqs=2).generate(as_prompts(PROMPTS), greedy(12))
    assert generated(outputs) == [reference(family, prompt, 12) for prompt in PROMPTS]
    assert any(output.stats.accepted for output in outputs)
