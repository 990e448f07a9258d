"""``vegas generate``, ``verify`` and ``demo``, on a tiny model that spells bytes."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console
from tiny_models import small_qwen3
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from vegas_spec import LLM
from vegas_spec.cli import app
from vegas_spec.cli.display import TokenPrinter
from vegas_spec.cli.errors import run
from vegas_spec.cli.verify import describe
from vegas_spec.engine.equality import Difference, EqualityReport
from vegas_spec.engine.outputs import CompletionOutput, RequestOutput, RequestStats, Update

SPECIAL = {"<pad>": 0, "<s>": 1, "</s>": 2}
PROMPT = ["--prompt", "Das ist [red]rot[/red] 🙂."]
CHAT = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}>"


def byte_tokenizer() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({**SPECIAL, **{letter: id_ for id_, letter in enumerate(letters, start=3)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def save(folder: Path, chat_template: str | None = None, broken: bool = False) -> str:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    config = small_qwen3(
        len(tokenizer),
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        if broken:
            model.lm_head.weight.fill_(float("nan"))
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    # A name that is markup to the library that draws on the terminal.
    return save(tmp_path_factory.mktemp("models") / "[" / "bold]", CHAT)


# --- generate -------------------------------------------------------------------------------------------------------


def test_the_same_text_in_every_form(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT[1], encoding="utf-8-sig")  # a byte order mark is no part of the text
    printed = []
    for arguments in (PROMPT, [*PROMPT, "--no-stream"], ["--prompt-file", str(file)], ["-"], [*PROMPT, "--show"]):
        stdin = io.TextIOWrapper(io.BytesIO(PROMPT[1].encode()), encoding="ascii", errors="surrogateescape")
        monkeypatch.setattr("sys.stdin", stdin)
        assert run(app, ["generate", model, "--max-tokens", "40", *arguments]) == 0
        printed.append(capsys.readouterr().out)
    assert run(app, ["generate", model, "--max-tokens", "40", *PROMPT, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert set(printed) == {output["outputs"][0]["text"] + "\n"}
    assert not output["interrupted"]


def test_ends_of_lines_stay_as_they_are(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    text = b"a\r\nb\rc\nd"
    (tmp_path / "prompt.txt").write_bytes(text)
    for arguments in (["--prompt-file", str(tmp_path / "prompt.txt")], ["-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert run(app, ["generate", model, "--max-tokens", "1", "--json", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["prompt_tokens"] == len(text)


def test_one_token(model: str, capsys: pytest.CaptureFixture[str]):
    assert run(app, ["generate", model, *PROMPT, "--max-tokens", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["outputs"][0]["token_ids"]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one prompt"),
        ([*PROMPT, "-"], "give one prompt"),
        (["text"], "a prompt is given with --prompt"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a\udcff"], "the prompt is not UTF-8 text (character 1)"),
        (["--prompt-file", "no-such-file"], "cannot read no-such-file"),
        (["--prompt-file", "."], "Is a directory"),
        ([*PROMPT, "--max-tokens", "0"], "max_tokens must be"),
        ([*PROMPT, "--temperature", "nan"], "temperature must be"),
        ([*PROMPT, "--kv-budget", "nan"], "kv_budget must be"),
        ([*PROMPT, "--kv-budget", "a tenth"], "got 'a tenth'"),
        ([*PROMPT, "--policy", "vegas:rows=all"], "give its options as flags: --policy vegas --rows all"),
        ([*PROMPT, "--policy", "vega"], "did you mean 'vegas'"),
        ([*PROMPT, "--dtype", "int8"], "dtype must be"),
        ([*PROMPT, "--max-model-len", "9999"], "max_model_len must be"),
        (["--prompt", "x" * 2000], "has 2000 tokens, but the context is 1024"),
        ([*PROMPT, "--chat"], "has no chat template"),
        ([*PROMPT, "--json", "--stop", ""], "stop must be"),
        ([*PROMPT, "--hf-overrides", "yarn"], "--hf-overrides must be a JSON object; got 'yarn'"),
        ([*PROMPT, "--hf-overrides", "[1]"], "--hf-overrides must be a JSON object"),
    ],
)
def test_bad_input(model: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert run(app, ["generate", model, *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("vegas: ")
    assert output.err.count("\n") == 1
    assert says in output.err


@pytest.mark.parametrize(
    ("stdin", "says"),
    [
        (None, "standard input is closed"),
        (
            io.TextIOWrapper(io.BytesIO(b"ab\xff"), errors="surrogateescape"),
            "standard input is not UTF-8",
        ),
        (io.TextIOWrapper(io.BytesIO(b"")), "the prompt is empty"),
    ],
)
def test_bad_standard_input(stdin: Any, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", stdin)
    assert run(app, ["generate", "no-such-model", "-"]) == 2
    assert says in capsys.readouterr().err


def test_a_broken_model_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(app, ["generate", save(tmp_path / "broken", broken=True), *PROMPT]) == 1
    assert "vegas: " in capsys.readouterr().err


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the second iteration that brought tokens."""
    stream = LLM.stream

    def stream_and_interrupt(self: LLM, *arguments: Any) -> Iterator[Update]:
        seen = 0
        for update in stream(self, *arguments):
            if seen == 2:
                raise KeyboardInterrupt
            yield update
            seen += update.new_tokens > 0

    monkeypatch.setattr(LLM, "stream", stream_and_interrupt)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("stop", [[], ["--stop", "a text that waits for its end"]])
def test_an_interruption_loses_nothing(model: str, stop: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(app, ["generate", model, *PROMPT, "--json", *stop]) == 130
    output = json.loads(capsys.readouterr().out)
    assert output["interrupted"]
    assert 1 < len(output["outputs"][0]["token_ids"]) < 256
    assert run(app, ["generate", model, *PROMPT, *stop]) == 130
    shown = capsys.readouterr()
    assert shown.out == output["outputs"][0]["text"] + "\n"
    assert shown.err.endswith("vegas: interrupted\n")


def test_an_interruption_before_anything_was_said(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: Any) -> Iterator[Update]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(LLM, "stream", interrupt)
    assert run(app, ["generate", model, *PROMPT]) == 130
    assert capsys.readouterr().err == "vegas: interrupted\n"


def test_no_room_for_the_output(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> Iterator[Update]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TokenPrinter, "show", full)
    assert run(app, ["generate", model, *PROMPT]) == 2
    assert capsys.readouterr().err == "vegas: cannot write the output: No space left on device\n"


def test_text_is_printed_as_it_is():
    text = "def f():\r\n\treturn '[/red] :smile: \x07'\n" + "x" * 300
    tokenizer = byte_tokenizer()
    tokens = tokenizer(text).input_ids
    completion = CompletionOutput(0, text, tokens, ["accepted"] * len(tokens))
    output = RequestOutput("0", None, [1], [completion], RequestStats(6), finished=True)
    for coloured in (False, True):
        file = io.StringIO()
        llm: Any = SimpleNamespace(model=SimpleNamespace(tokenizer=tokenizer))
        printer = TokenPrinter(llm, Console(file=file, width=20, highlight=False), (), coloured)
        printer.show(Update(output, new_tokens=len(tokens), prefilled=1))
        assert file.getvalue() == text


# --- verify and demo ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ["--num-speculative-tokens", "1", "--kv-budget", "0.001", "--kv-budget-min", "1"],
        ["--num-speculative-tokens", "16", "--kv-budget-min", "1", "--rows", "last", "--score", "logit"],
        ["--kv-budget-min", "1", "--kv-budget-max", "1", "--granularity", "layer", "--rows", "all"],
        ["--policy", "dense"],
        ["--policy", "quest", "--kv-budget-min", "16"],
    ],
)
def test_verify_finds_no_difference(model: str, options: list[str], capsys: pytest.CaptureFixture[str]):
    prompts = ["--prompt", "a", "--prompt", "many words " * 20]
    assert run(app, ["verify", model, "--dtype", "float32", "--max-tokens", "24", *prompts, *options]) == 0
    assert capsys.readouterr().out.startswith("48/48 tokens identical\n")
    assert run(app, ["verify", model, "--max-tokens", "8", *prompts, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identical"]


def test_verify_without_a_prompt_needs_a_chat_template(model: str, capsys: pytest.CaptureFixture[str]):
    assert run(app, ["verify", model]) == 2
    assert "give --prompt or --prompt-file" in capsys.readouterr().err


def test_a_built_in_prompt_too_long_is_refused_before_it_is_made(
    chat_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vegas_spec.engine.source_text.source_tokens", None)
    for command in (["verify", chat_model], ["demo", "--model", chat_model]):
        assert run(app, [*command, "--prompt-tokens", "99999999"]) == 2
        assert "--prompt-tokens must be an integer from 1 to 1023; got 99999999" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gaps", "says"),
    [
        ([], "4/4 tokens identical"),
        ([0.1], "3/4 tokens identical: all but 1 numerical tie"),
        ([0.1, 0.2], "2/4 tokens identical: all but 2 numerical ties"),
        ([0.1, 9.0], "2/4 tokens identical"),
    ],
)
def test_a_numerical_tie_is_no_mismatch(gaps: list[float], says: str):
    differences = [Difference(0, place, 1, "a", 2, "b", gap, gap < 1) for place, gap in enumerate(gaps)]
    first, *rest = describe(EqualityReport(4, 4 - len(gaps), differences, [], [])).splitlines()
    assert first == says
    ends = ["a numerical tie" if gap < 1 else "NOT a numerical tie" for gap in gaps]
    assert [line.rpartition(", ")[2] for line in rest[:-1]] == ends


def test_the_demo(chat_model: str, capsys: pytest.CaptureFixture[str]):
    arguments = ["demo", "--model", chat_model, "--prompt-tokens", "500", "--max-tokens", "12"]
    assert run(app, arguments) == 0
    assert "12/12 tokens identical" in capsys.readouterr().out
    assert run(app, [*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identical"]
    assert run(app, ["demo", "--model", chat_model, "--max-tokens", "0"]) == 2


# --- config files ---------------------------------------------------------------------------------------------------


def test_a_config_file_gives_options_and_flags_win(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text('[vegas]\nnum_speculative_tokens = 3\nkv_budget_min = 9\n[tuned_on]\nmodel = "other"\n')
    common = ["generate", model, *PROMPT, "--config", str(path), "--json", "--max-tokens", "8"]
    for flags, expected in (([], 3), (["--num-speculative-tokens", "6"], 6)):
        assert run(app, [*common, *flags]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["stats"]["num_speculative_tokens"] == expected
        assert "tuned on model 'other'" in err.replace("\n", " ")
    assert run(app, ["verify", model, *PROMPT, "--config", str(tmp_path / "none.toml")]) == 2
    assert "cannot read the config file" in capsys.readouterr().err
