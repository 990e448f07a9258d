"""Prompts that are stored somewhere: known data sets of the hub, and any JSONL file."""

from __future__ import annotations

import re
from pathlib import Path

from vegas_bench.workloads.prompt import Wanted, WorkloadPrompt
from vegas_bench.workloads.records import Record, prompts_from, read_hub, read_jsonl, text_of
from vegas_spec.config import invalid
from vegas_spec.engine.encoder import Encoder

AIME25 = ("math-ai/aime25", "test", ("problem", "answer"))
CODEELO = ("Qwen/CodeElo", "test", ("problem_id", "description", "input", "output", "examples", "note"))
LONGBENCH_V2 = (
    "THUDM/LongBench-v2",
    "train",
    ("_id", "domain", "question", "choice_A", "choice_B", "choice_C", "choice_D", "answer", "context"),
)
"""Hub id, split and the columns that are read."""


def aime25_prompts(encoder: Encoder, wanted: Wanted, *, file: str = "") -> list[WorkloadPrompt]:
    """AIME 2025: 30 problems of mathematics, short to ask and long to answer.

    Parameters
    ----------
    file : str
        A local JSONL file with the hub's columns, instead of the hub.

    """

    def to_prompt(record: Record) -> tuple[str, str, str, tuple[str, ...]]:
        message = f"{record['problem']}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
        answer = re.escape(str(record["answer"]).strip())
        return _name(record, "id", str(record["problem"])), "reasoning", message, (rf"\\boxed\{{0*{answer}\}}",)

    return _prompts(encoder, wanted, "aime25", AIME25, file, to_prompt)


def codeelo_prompts(encoder: Encoder, wanted: Wanted, *, file: str = "") -> list[WorkloadPrompt]:
    """CodeElo (arXiv 2501.01257): problems of programming contests. Answers are not judged: that needs the contest.

    Parameters
    ----------
    file : str
        A local JSONL file with the hub's columns, instead of the hub.

    """

    def to_prompt(record: Record) -> tuple[str, str, str, tuple[str, ...]]:
        examples = "\n\n".join(f"Input:\n{given}\nOutput:\n{said}" for given, said in record["examples"] or ())
        parts = [
            "Solve this problem of a programming contest. Think it through, then give a complete C++ program.",
            str(record["description"]),
            f"## Input\n{record['input']}",
            f"## Output\n{record['output']}",
            f"## Examples\n{examples}" if examples else "",
            f"## Note\n{record['note']}" if record["note"] else "",
        ]
        return str(record["problem_id"]), "code", "\n\n".join(part for part in parts if part), ()

    return _prompts(encoder, wanted, "codeelo", CODEELO, file, to_prompt)


def longbench_v2_prompts(encoder: Encoder, wanted: Wanted, *, file: str = "") -> list[WorkloadPrompt]:
    """LongBench v2 (arXiv 2412.15204): questions with four choices about long documents, as its authors ask them.

    Parameters
    ----------
    file : str
        A local JSONL file with the hub's columns, instead of the hub.

    """

    def to_prompt(record: Record) -> tuple[str, str, str, tuple[str, ...]]:
        choices = "\n".join(f"({letter}) {record[f'choice_{letter}']}" for letter in "ABCD")
        message = (
            "Please read the following text and answer the question below.\n\n"
            f"<text>\n{record['context']}\n</text>\n\n"
            f"What is the correct answer to this question: {record['question']}\nChoices:\n{choices}\n\n"
            'Format your response as follows: "The correct answer is (insert answer here)".'
        )
        expected = (rf"(?i)correct answer is[\s*]*\(?{re.escape(str(record['answer']))}\b",)
        return str(record["_id"]), str(record["domain"]), message, expected

    return _prompts(encoder, wanted, "longbench-v2", LONGBENCH_V2, file, to_prompt)


def jsonl_prompts(encoder: Encoder, wanted: Wanted, *, file: str = "", field: str = "text") -> list[WorkloadPrompt]:
    """Any JSONL file, the user's message in one field; ``id`` and ``task``, where they are, name and sort it.

    Parameters
    ----------
    file : str
        The file.
    field : str
        Which field holds the message.

    """
    if not file:
        raise invalid("file", "the path of a JSONL file: --workload jsonl:file=FILE", file)

    def to_prompt(record: Record) -> tuple[str, str, str, tuple[str, ...]]:
        text = text_of(record, field, file)
        return _name(record, "id", text), str(record.get("task", "text")), text, ()

    return prompts_from(encoder, wanted, read_jsonl(Path(file), [field]), to_prompt, file)


def _prompts(
    encoder: Encoder,
    wanted: Wanted,
    name: str,
    where: tuple[str, str, tuple[str, ...]],
    file: str,
    to_prompt: object,
) -> list[WorkloadPrompt]:
    hub_id, split, columns = where
    records = read_jsonl(Path(file), columns) if file else read_hub(name, hub_id, split, columns)
    return prompts_from(encoder, wanted, records, to_prompt, file or hub_id)  # type: ignore[arg-type]


def _name(record: Record, field: str, otherwise: str) -> str:
    return str(record.get(field, otherwise[:40]))
