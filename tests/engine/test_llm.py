"""The Python API: what comes back, what is counted, and what stays when it is interrupted."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from engine_cases import POLICIES, as_prompts, describe, generated, greedy, make_llm, reference
from scripted import TALK, TOKENIZER, say, scripted_llm, spell
from tiny_models import VOCAB, random_prompt
from torch import Tensor

from vegas_spec import ConfigError, InputError, RequestOutput, SamplingParams
from vegas_spec.engine.outputs import Update

PROMPTS = [random_prompt(length, seed=length) for length in (1, 40, 23)]

# --- statistics -----------------------------------------------------------------------------------------------------


def check_stats(output: RequestOutput, gamma: int) -> None:
    stats, completion = output.stats, output.outputs[0]
    assert len(stats.accepted_per_position) == gamma
    assert sum(stats.accepted_per_position) == stats.accepted <= stats.drafted <= stats.drafts * gamma
    assert sum(stats.drafted_per_position) == stats.drafted
    assert all(a <= d for a, d in zip(stats.accepted_per_position, stats.drafted_per_position, strict=True))
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
    assert stats.drafts <= stats.iterations
    origins = completion.token_origins
    assert len(origins) == len(completion.token_ids)
    assert origins.count("accepted") == stats.accepted
    # Every iteration but one that ended with an accepted draft commits a token of the model's own.
    own = len(origins) - stats.accepted
    assert own == 1 + stats.iterations - (origins[-1] == "accepted")
    assert set(stats.seconds) == {"prefill", "draft", "verify", "accept", "select"}
    assert all(seconds >= 0 for seconds in stats.seconds.values())
    assert stats.committed == len(origins) - 1  # the first token is the prompt's
    if stats.iterations:
        assert stats.mean_acceptance_length == stats.committed / stats.iterations
    assert 0 <= stats.draft_kv_share <= 1
    json.dumps(output.to_dict())


@pytest.mark.parametrize("gamma", [1, 4])
@pytest.mark.parametrize("options", POLICIES, ids=describe)
def test_statistics_of_a_model(options: dict[str, Any], gamma: int) -> None:
    llm = make_llm("gemma3_text", num_speculative_tokens=gamma, kv_budget_min=12, **options)
    for output in llm.generate(as_prompts(PROMPTS), greedy(40)):
        check_stats(output, gamma)
        assert (output.stats.selection_seconds > 0) == (options["policy"] not in ("full", "dense"))
        assert output.stats.selection_seconds < sum(output.stats.seconds.values())
        if options["policy"] == "full":
            assert output.stats.drafted == output.stats.draft_kv_entries == 0
            assert set(output.outputs[0].token_origins) == {"bonus"}
        if options["policy"] == "dense":
            assert output.stats.draft_kv_share == 1
            assert output.stats.accepted == output.stats.drafted > 0
        if options["policy"] == "vegas":
            assert output.stats.accepted > 0


def test_origins_and_counts_of_a_script() -> None:
    # Drafts at 1, 4, 7 after the prompt are wrong. Token 0 comes from the prompt; then: 1 wrong; 2, 3 right, 4 wrong;
    # 5, 6 right, 7 wrong; 8, 9 right and no draft for the tenth, the last one.
    output = say(spell("0123456789A"), SamplingParams(temperature=0, max_tokens=11), num_speculative_tokens=3)
    a, c, b = "accepted", "corrected", "bonus"
    assert output.outputs[0].token_origins == [b, c, a, a, c, a, a, c, a, a, b]
    stats = output.stats
    assert (stats.iterations, stats.drafts, stats.drafted, stats.accepted) == (4, 4, 3 + 3 + 3 + 2, 6)
    assert stats.accepted_per_position == [3, 3, 0]
    assert stats.drafted_per_position == [4, 4, 3]
    check_stats(output, 3)


def test_a_token_past_a_stop_is_not_committed() -> None:
    """One token of the prompt; five drafts and a bonus; a draft that ends the text, and no bonus after it."""
    params = SamplingParams(temperature=0, max_tokens=99, stop="7")
    output = say(spell("0123456789ABCDEF"), params, num_speculative_tokens=5, policy="dense", wrong_every=0)
    assert (output.stats.iterations, output.stats.accepted) == (2, 6)
    assert output.stats.mean_acceptance_length == 3.5
    check_stats(output, 5)


def test_entries_read() -> None:
    """One layer, one KV head: iterations of a script, counted by hand."""
    options = {"num_speculative_tokens": 2, "kv_budget": 1e-6, "kv_budget_min": 3, "wrong_every": 0}
    llm = scripted_llm(spell("0123456"), prompt_len=8, **options)
    output = llm.generate("x" * 8, SamplingParams(temperature=0, max_tokens=7))[0]
    # Verifications: 8 keys (the prompt), then with two drafts at 8, 11: 11 and 14 keys.
    assert output.stats.iterations == 2
    assert output.stats.verify_kv_entries == 8 + 11 + 14
    # Drafts: prefix 8, rows at 8 and 9; prefix 9, rows at 11 and 12. Three selected, and all since the prefix.
    assert output.stats.draft_kv_entries == (3 + 1) + (3 + 2) + (3 + 3) + (3 + 4)
    assert output.stats.draft_kv_entries_dense == 9 + 10 + 12 + 13


# --- streaming and interruption -------------------------------------------------------------------------------------


def test_a_stream_leaves_the_callers_gradients_alone() -> None:
    for _ in make_llm("qwen3", prefill_chunk_size=16).stream(as_prompts(PROMPTS), greedy(4)):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_updates_add_up_to_the_output() -> None:
    llm = make_llm("qwen3", max_num_seqs=2, prefill_chunk_size=16, kv_budget_min=16)
    prefilled, tokens = dict[str, list[int]](), dict[str, list[int]]()
    finals = dict[str, RequestOutput]()
    for update in llm.stream(as_prompts(PROMPTS), greedy(20)):
        name, said = update.output.request_id, update.output.outputs[0].token_ids
        prefilled.setdefault(name, []).append(update.prefilled)
        tokens.setdefault(name, []).extend(said[len(said) - update.new_tokens :])
        assert tokens[name] == said
        finals[name] = update.output
    outputs = llm.generate(as_prompts(PROMPTS), greedy(20))
    assert [tokens[output.request_id] for output in outputs] == generated(outputs)
    assert all(finals[name].finished for name in ("0", "1", "2"))
    assert prefilled["1"][:3] == [16, 32, 39]
    assert set(prefilled["1"][3:]) == {40}
    assert [output.request_id for output in outputs] == ["0", "1", "2"]


@pytest.mark.parametrize("events", [1, 2, 4, 9])
def test_closing_a_stream_keeps_what_there_is(events: int) -> None:
    llm = make_llm("gemma3_text", kv_budget_min=16, prefill_chunk_size=32)
    stream = llm.stream(as_prompts(PROMPTS[1:2]), greedy(40))
    for _ in range(events):
        update = next(stream)
    stream.close()  # type: ignore[attr-defined]
    said = update.output.outputs[0].token_ids
    assert said == reference("gemma3_text", PROMPTS[1], 40)[: len(said)]
    assert not update.output.finished
    assert update.output.outputs[0].finish_reason is None
    assert generated(llm.generate(as_prompts(PROMPTS), greedy(12))) == [
        reference("gemma3_text", p, 12) for p in PROMPTS
    ]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("call", [1, 2, 3, 9, 14])
def test_an_interruption_within_a_forward_pass_keeps_what_there_is(
    monkeypatch: pytest.MonkeyPatch, call: int, interruption: type[BaseException]
) -> None:
    llm = make_llm("qwen3", num_speculative_tokens=3, kv_budget_min=16)
    forward, calls = llm.model.forward, 0

    def interrupted(*arguments: Any) -> Tensor:
        nonlocal calls
        calls += 1
        logits = forward(*arguments)
        if calls == call:
            raise interruption
        return logits

    monkeypatch.setattr(llm.model, "forward", interrupted)
    stream = llm.stream(as_prompts(PROMPTS[1:2]), greedy(40))
    updates: list[Update] = []
    with pytest.raises(interruption):  # noqa: PT012
        for update in stream:
            updates.append(update)
    if updates:
        said = updates[-1].output.outputs[0].token_ids
        assert said == reference("qwen3", PROMPTS[1], 40)[: len(said)]
        assert len(updates[-1].output.outputs[0].token_origins) == len(said)
    # The engine goes on with the next call.
    assert generated(llm.generate(as_prompts(PROMPTS), greedy(12))) == [reference("qwen3", p, 12) for p in PROMPTS]


# --- calls ----------------------------------------------------------------------------------------------------------


def test_parameters_for_each_prompt() -> None:
    llm = make_llm("qwen2")
    outputs = llm.generate(as_prompts(PROMPTS), [greedy(3), greedy(9), greedy(1)])
    assert [len(tokens) for tokens in generated(outputs)] == [3, 9, 1]
    assert generated(outputs) == [reference("qwen2", p, n) for p, n in zip(PROMPTS, (3, 9, 1), strict=True)]
    with pytest.raises(InputError, match="3 prompts need as many sampling_params; got 2"):
        llm.generate(as_prompts(PROMPTS), [greedy(3)] * 2)
    for wrong in ({"temperature": 0}, [{"temperature": 0}] * 3, 7):
        with pytest.raises(InputError, match="sampling_params are SamplingParams"):
            llm.generate(as_prompts(PROMPTS), wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="prompts are a prompt or a list of them; got int"):
        llm.generate(7)  # type: ignore[arg-type]


def test_forms_of_prompts() -> None:
    llm = scripted_llm(spell("hello"))
    alone = llm.generate("x", TALK)
    assert [output.outputs[0].text for output in alone] == ["hello"]
    assert alone[0].prompt_token_ids == spell("x")
    tokens = llm.generate({"prompt_token_ids": spell("x")}, TALK)
    assert (tokens[0].prompt, tokens[0].outputs[0].text) == (None, "hello")
    several = llm.generate(["y", {"prompt_token_ids": spell("x")}, "x"], TALK)
    assert [output.prompt for output in several] == ["y", None, "x"]
    assert [output.outputs[0].text for output in several] == ["hello"] * 3
    assert llm.generate([], TALK) == []
    assert list(llm.stream([], TALK)) == []


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (1.0, 1.0, 0, 16)
    assert len(make_llm("qwen2").generate(as_prompts(PROMPTS))[0].outputs[0].token_ids) <= 16


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def test_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = scripted_llm(spell("answer"), prompt_len=len("<user>hi<a>"))
    assert not llm.has_chat_template
    with pytest.raises(InputError, match="has no chat template; give the prompt as plain text instead"):
        llm.chat([{"role": "user", "content": "hi"}], TALK)
    monkeypatch.setattr(TOKENIZER, "chat_template", TEMPLATE, raising=False)
    assert llm.has_chat_template
    one = llm.chat([{"role": "user", "content": "hi"}], TALK)
    assert one[0].prompt_token_ids == spell("<user>hi<a>")
    assert one[0].outputs[0].text == "answer"
    two = llm.chat([[{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]], TALK)
    assert [output.outputs[0].text for output in two] == ["answer"] * 2
    assert TOKENIZER.decode(two[1].prompt_token_ids) == "<user>ho<a>"


@pytest.mark.parametrize("messages", [[{"role": "system", "content": "x"}], [{"content": "x"}], ["x"], [["x"]]])
def test_messages_that_the_chat_template_refuses(monkeypatch: pytest.MonkeyPatch, messages: Any) -> None:
    template = "{% if messages[0].role not in ['user'] %}{{ raise_exception('only users speak') }}{% endif %}"
    monkeypatch.setattr(TOKENIZER, "chat_template", template, raising=False)
    with pytest.raises(InputError, match="refuses these messages: "):
        scripted_llm(spell("answer")).chat(messages, TALK)


def test_no_conversation_is_refused() -> None:
    for nothing in ([], [[]], ()):
        with pytest.raises(InputError, match="a conversation needs at least one message; got none"):
            scripted_llm(spell("answer")).chat(nothing, TALK)  # type: ignore[arg-type]


def test_threads() -> None:
    assert torch.get_num_threads() == 1
    try:
        make_llm("qwen3", threads=2)
        assert torch.get_num_threads() == 2
        make_llm("qwen3")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    with pytest.raises(ConfigError, match="threads must be an integer of at least 1; got 0"):
        make_llm("qwen3", threads=0)


def test_a_model_without_a_tokenizer_gives_tokens_only() -> None:
    output = make_llm("qwen3").generate(as_prompts(PROMPTS[:1]), greedy(5))[0]
    assert output.outputs[0].text == ""
    assert all(0 <= token < VOCAB for token in output.outputs[0].token_ids)
