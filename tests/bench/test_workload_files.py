"""Files of prompts as people have them: what is text is read whole, what is not is refused by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_workloads import build, encoder  # noqa: F401

from vegas_bench.workloads import Encoder, parse
from vegas_spec.engine.prompts import InputError


def prompts(encoder: Encoder, file: Path, content: str | bytes) -> list[tuple[str, str]]:  # noqa: F811
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [
        (each.name, encoder.decode(each.prompt["prompt_token_ids"])) for each in build(encoder, f"jsonl:file={file}")
    ]


def test_lines_end_at_line_feeds_alone(encoder: Encoder, tmp_path: Path) -> None:  # noqa: F811
    text = "one\u2028two\x85three\x1cfour"
    lines = json.dumps({"id": "a", "text": text}, ensure_ascii=False) + "\r\n\r\n" + json.dumps({"text": "five"})
    found = prompts(encoder, tmp_path / "a.jsonl", b"\xef\xbb\xbf" + lines.encode())
    assert found == [("a", f"<{text}>"), ("five", "<five>")]


def test_names_are_unique(encoder: Encoder, tmp_path: Path) -> None:  # noqa: F811
    lines = [json.dumps({"id": name, "text": str(number)}) for number, name in enumerate(("a", "a", "a (2)", "a"))]
    found = prompts(encoder, tmp_path / "a.jsonl", "\n".join(lines))
    assert [name for name, _ in found] == ["a", "a (2)", "a (2) (2)", "a (3)"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no records"),
        ('{"text": "good"}\n"text"\n', "line 2 of .* is not a JSON object"),
        ('["text"]', "line 1 of .* is not a JSON object"),
        ("null", "line 1 of .* is not a JSON object"),
        ("[" * 100_000, "line 1 of .* is not a JSON object"),
        ('{"text": null}', "the field 'text' of every record must be text; got None"),
        ('{"text": 5}', "the field 'text' of every record must be text; got 5"),
        ('{"text": "\\ud800 hello"}', "line 1 of .* holds half a character"),
        (b'{"text": "\xff"}', r"is not UTF-8 text \(byte 10\)"),
    ],
)
def test_what_holds_no_prompt(encoder: Encoder, tmp_path: Path, content: str | bytes, message: str) -> None:  # noqa: F811
    with pytest.raises(InputError, match=message):
        prompts(encoder, tmp_path / "a.jsonl", content)


def test_a_record_of_another_form(encoder: Encoder, tmp_path: Path) -> None:  # noqa: F811
    record = dict.fromkeys(("problem_id", "description", "input", "output", "note"), "x") | {"examples": ["abc"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"a record is not of the workload's form: \{'problem_id'"):
        build(encoder, f"codeelo:file={tmp_path / 'a.jsonl'}")


def test_no_room_for_a_prompt(encoder: Encoder) -> None:  # noqa: F811
    with pytest.raises(InputError, match="the output takes all of the model's context; lower --max-tokens"):
        parse("source").build(encoder, -10)
