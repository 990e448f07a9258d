"""Workloads: lengths in the model's tokens, answers that can be found, and clear words where prompts cannot be had."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vegas_bench.workloads import WORKLOADS, Encoder, WorkloadPrompt, parse
from vegas_spec.config import ConfigError
from vegas_spec.engine.prompts import InputError

CHAT = "<{% for message in messages %}{{ message['content'] }}{% endfor %}>"
ROOM = 8000
FILES: dict[str, list[dict[str, Any]]] = {
    "aime25": [
        {"id": str(number), "problem": f"What is {number} + 1?", "answer": f"{number + 1}"} for number in range(5)
    ],
    "codeelo": [
        {
            "problem_id": "2000A",
            "description": "Add two numbers.",
            "input": "Two numbers.",
            "output": "Their sum.",
            "examples": [["1 2", "3"]],
            "note": None,
        }
    ],
    "longbench-v2": [
        {
            "_id": "ab12",
            "domain": "Long-dialogue History Understanding",
            "question": "Who spoke?",
            **{f"choice_{letter}": f"person {letter}" for letter in "ABCD"},
            "answer": "C",
            "context": "word " * 900,
        }
    ],
    "jsonl": [{"text": "one " * length} for length in (10, 100, 500)],
}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: id_ for id_, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = CHAT
    return Encoder(fast, "tiny")


def build(encoder: Encoder, text: str, **common: int) -> list[WorkloadPrompt]:
    return parse(text).build(encoder, ROOM, **common)


def written(folder: Path, name: str) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n\n" for record in FILES[name]))
    return str(path)


@pytest.mark.parametrize("name", ["source", "needle", "multi-key"])
def test_generated_prompts_have_the_wanted_lengths_and_depend_on_the_seed_alone(encoder: Encoder, name: str) -> None:
    prompts = build(encoder, f"{name}:prompts=4,min_tokens=3000", max_tokens=6000)
    assert [len(each.prompt["prompt_token_ids"]) for each in prompts] == [3000, 4000, 5000, 6000]
    assert len({each.name for each in prompts}) == 4
    assert prompts == build(encoder, f"{name}:prompts=4,min_tokens=3000", max_tokens=6000)
    assert prompts != build(encoder, f"{name}:prompts=4,min_tokens=3000,seed=1", max_tokens=6000)
    text = encoder.decode(prompts[0].prompt["prompt_token_ids"])
    assert text[0] == "<"
    assert text[-1] == ">"


def test_needles_lie_where_they_should_and_only_they_answer(encoder: Encoder) -> None:
    for depth in (0, 0.25, 1):
        [prompt] = build(encoder, f"needle:prompts=1,min_tokens=4000,max_tokens=4000,depth={depth}")
        text = encoder.decode(prompt.prompt["prompt_token_ids"])
        found = re.search(r"# The magic number of (\S+) is (\d+)\.", text)
        assert found is not None
        assert found.start() / len(text) == pytest.approx(depth, abs=0.1)
        assert f"magic numbers of {found[1]}?" in text
        assert prompt.correct(f"It is {found[2]}.") == 1
        assert prompt.correct(f"It is {found[2]}0.") == 0


def test_some_of_many_keys_are_asked_for(encoder: Encoder) -> None:
    [prompt] = build(encoder, "multi-key:prompts=1,keys=5,queries=3")
    text = encoder.decode(prompt.prompt["prompt_token_ids"])
    numbers = dict(re.findall(r"# The magic number of (\S+) is (\d+)\.", text))
    assert len(numbers) == 5
    asked = re.search(r"magic numbers of (.*)\?", text)[1].split(", ")  # type: ignore[index]
    assert len(asked) == 3
    assert prompt.correct(" ".join(numbers[key] for key in asked)) == 1
    assert prompt.correct(numbers[asked[0]]) == pytest.approx(1 / 3)
    assert prompt.correct(" ".join(number for key, number in numbers.items() if key not in asked)) == 0


@pytest.mark.parametrize("name", ["aime25", "codeelo", "longbench-v2"])
def test_data_sets_of_the_hub_and_of_a_file_are_the_same(
    encoder: Encoder, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def load_dataset(hub_id: str, split: str) -> list[dict[str, Any]]:
        asked.append((hub_id, split))
        return FILES[name]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    from_hub = build(encoder, f"{name}:min_tokens=1")
    assert from_hub == build(encoder, f"{name}:min_tokens=1,file={written(tmp_path, name)}")
    assert len(asked) == 1
    assert len(from_hub) == len(FILES[name])


def test_what_data_sets_ask_and_expect(encoder: Encoder, tmp_path: Path) -> None:
    def first(name: str) -> tuple[str, WorkloadPrompt]:
        prompt = build(encoder, f"{name}:min_tokens=1,file={written(tmp_path, name)}")[0]
        return encoder.decode(prompt.prompt["prompt_token_ids"]), prompt

    text, prompt = first("aime25")
    assert "What is 0 + 1?" in text
    assert prompt.correct(r"so \boxed{1}.") == prompt.correct(r"so \boxed{001}.") == 1
    assert prompt.correct("so 1") == prompt.correct(r"\boxed{11}") == 0
    text, prompt = first("codeelo")
    assert "## Examples\nInput:\n1 2\nOutput:\n3" in text
    assert prompt.correct("anything") is None
    text, prompt = first("longbench-v2")
    assert "(C) person C" in text
    assert prompt.correct("**The correct answer is (C)**") == prompt.correct("the correct answer is C.") == 1
    assert prompt.correct("The correct answer is (D)") == prompt.correct("Choose (C)") == 0


def test_stored_prompts_are_left_out_cut_and_shuffled(encoder: Encoder, tmp_path: Path) -> None:
    path = written(tmp_path, "jsonl")
    lengths = [len(each.prompt["prompt_token_ids"]) for each in build(encoder, f"jsonl:file={path}")]
    assert lengths == [42, 402, 2002]
    names = [each.name for each in build(encoder, f"jsonl:file={path}")]
    assert len(set(names)) == len(names)  # though all begin alike
    [cut] = build(encoder, f"jsonl:file={path}", min_tokens=403, max_tokens=1000)
    assert len(cut.prompt["prompt_token_ids"]) == 1000
    assert encoder.decode(cut.prompt["prompt_token_ids"]).endswith("one >")
    assert len(build(encoder, f"jsonl:file={path},prompts=1")) == 1
    orders = {
        tuple(each.name for each in build(encoder, f"aime25:seed={seed},file={written(tmp_path, 'aime25')}"))
        for seed in range(4)
    }
    assert len(orders) > 1


def test_texts_are_as_many_as_wanted_and_drawn_anew_for_each(encoder: Encoder, tmp_path: Path) -> None:
    """A prefix cache that has seen the prompts of one length helps none of another."""
    (tmp_path / "documents.jsonl").write_text('{"text": "Zeppelins. "}\n')
    file = tmp_path / "documents.jsonl"
    prompts = build(encoder, f"texts:file={file}", prompts=5, min_tokens=300, max_tokens=300)
    texts = [encoder.decode(each.prompt["prompt_token_ids"]) for each in prompts]
    assert [len(each.prompt["prompt_token_ids"]) for each in prompts] == [300] * 5
    assert [each.kind for each in prompts] == ["source", "text"] * 2 + ["source"]
    assert texts[1].startswith("Zeppelins. Zeppelins. ")
    source = build(encoder, "texts:prompts=5,min_tokens=300,max_tokens=300")
    assert len({tuple(each.prompt["prompt_token_ids"]) for each in source}) == 5
    [shorter] = build(encoder, "texts:prompts=1,min_tokens=200,max_tokens=200")
    assert shorter.prompt["prompt_token_ids"] != source[0].prompt["prompt_token_ids"][:200]
    file.write_text('{"text": null}')
    with pytest.raises(InputError, match="the field 'text' of every record must be text; got None"):
        build(encoder, f"texts:file={file}")


def test_what_the_context_has_no_room_for_is_said(encoder: Encoder, tmp_path: Path) -> None:
    def said(text: str, room: int, **common: int) -> list[str]:
        notes: list[str] = []
        parse(text).build(encoder, room, notes.append, **common)
        return notes

    path = written(tmp_path, "jsonl")
    assert said(f"jsonl:file={path}", 1000) == [
        f"jsonl:file={path}: 1 of 3 texts are longer than 1000 tokens and lost their middle, up to 1002 tokens of one"
    ]
    assert said(f"jsonl:file={path}", 8000) == []
    [wanted] = said("source:prompts=1", 5000)
    assert wanted == "source:prompts=1: prompts of up to 8192 tokens are wanted, and the model's context leaves 5000"
    assert said("source:prompts=1", 5000, max_tokens=4500) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sorce", r"workload must be one of source, .*did you mean 'source'"),
        ("source:min_token=3", "unknown parameter of workload source 'min_token'; did you mean 'min_tokens'"),
        ("source:prompts", "name:key=value"),
        ("source:prompts=two", "prompts must be a whole number; got 'two'"),
        ("source:prompts=0", "prompts must be an integer of at least 1"),
        ("source:min_tokens=9000", "min_tokens must be at most max_tokens; got 9000 and 8000"),
        ("needle:depth=2", "depth must be a share of the text"),
        ("multi-key:keys=2,queries=3", "queries must be an integer from 1 to 2"),
        ("jsonl", "jsonl:file=FILE"),
    ],
)
def test_bad_workloads_are_refused(encoder: Encoder, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(encoder, text)


def test_prompts_that_cannot_be_had(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(hub_id: str, split: str) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=no_network))
    with pytest.raises(
        InputError, match=r"could not read math-ai/aime25.*Couldn't reach.*problem, answer.*aime25:file="
    ):
        build(encoder, "aime25")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install .*\[bench\]'.*local JSONL file"):
        build(encoder, "codeelo")
    path = written(tmp_path, "aime25")
    with pytest.raises(InputError, match="lacks the field '_id'"):
        build(encoder, f"longbench-v2:file={path}")
    with pytest.raises(InputError, match=r"none of the 5 records .* at least 5000 tokens"):
        build(encoder, f"aime25:file={path},min_tokens=5000")
    with pytest.raises(InputError, match="cannot read"):
        build(encoder, f"aime25:file={tmp_path / 'none'}")
    Path(path).write_text("[1]\n{")
    with pytest.raises(InputError, match="line 1 of"):
        build(encoder, f"aime25:file={path}")
    with pytest.raises(InputError, match="needs at least"):
        build(encoder, "source:min_tokens=20,max_tokens=20")
    with pytest.raises(InputError, match="needles needs"):
        build(encoder, "multi-key:min_tokens=400,max_tokens=400")


def test_every_workload_says_what_it_is() -> None:
    for name, workload in WORKLOADS.items():
        assert workload.name == name
        assert workload.summary
        assert set(workload.options) <= {"file", "field", "depth", "keys", "queries"}
