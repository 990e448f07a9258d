"""``benchmarks/vllm_decode.py`` with a process in the place of vLLM's sides."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from vegas_bench.results.results import load
from vegas_bench.workloads import Encoder

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

vllm_decode: Any = importlib.import_module("vllm_decode")
vllm_prompts: Any = importlib.import_module("_vllm_prompts")

SIDE = """
    import json, pathlib, sys, time
    job = json.load(open(sys.argv[-1]))
    order = open(job["documents"], "a", buffering=1)
    with open(job["out"], "a", buffering=1) as out:
        speculative = job["engine"]["speculative_config"] or {}
        name = pathlib.Path(job["turn"]).stem
        size = {"weight_bytes": 1000, "kv_bytes_per_token": 1}
        print(f"{name} starts", file=order)
        print(json.dumps({"size": size, "kv_blocks": 7}), file=out)
        while not pathlib.Path(job["turn"]).exists():
            time.sleep(0.01)
        print(f"{name} measures", file=order)
        for case in job["cases"]:
            accepted = 5.0 if speculative else None
            measured = {"tokens_per_second": [float(case["batch"])] * job["repeats"]}
            measured |= {"accepted_per_iteration": accepted, "accepted_per_position": None, "milliseconds": None}
            print(json.dumps({"case": case, "measured": measured}), file=out)
            if job["profile"]:
                print(json.dumps({"case": case, "profile": {"host": []}}), file=out)
            if speculative.get("method") == "ngram":
                sys.exit(1)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the benchmark; gives its result and, in order, what its sides did."""
    script, order, out = tmp_path / "side.py", tmp_path / "order", tmp_path / "out.json"
    script.write_text(textwrap.dedent(SIDE))
    monkeypatch.setattr(vllm_decode, "PROGRAM", [sys.executable, str(script)])

    def started(*arguments: str) -> tuple[Any, list[str]]:
        order.write_text("")
        command = ["vllm_decode.py", "some/model", *arguments, "--documents", str(order), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", command)
        vllm_decode.main()
        return load(out), order.read_text().splitlines()

    return started


def test_sides_one_after_the_other(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    sides = ["stock", "ngram", "stream", "dense"]
    result, order = run("--cases", "1000x9", "500x2", "--repeats", "2", "--profile", "--sides", *sides)
    assert order == [f"{side} {what}" for side in sides for what in ("starts", "measures")]
    assert "ngram ended with exit code 1" in capfd.readouterr().err
    rows = {(row.policy, row.context): row for row in result.rows}
    # What a side measured before it failed stays.
    assert list(rows) == [
        *(("full", 1000), ("full", 500)),
        ("ngram", 1000),
        *(("stream", 1000), ("stream", 500), ("dense", 1000), ("dense", 500)),
    ]
    assert rows["full", 1000].tokens_per_second == [9.0, 9.0]
    assert rows["full", 1000].config == {}
    assert rows["ngram", 1000].config["prompt_lookup_max"] == 4
    assert rows["ngram", 1000].predicted_speedup is None
    assert rows["dense", 500].predicted_speedup == pytest.approx(6 / 7)
    read = 1000 + 9000 * 0.256  # weights, and the least budget of each context
    assert rows["stream", 1000].predicted_speedup == pytest.approx(6 * 10_000 / (10_000 + 6 * read))
    about = result.settings["sides"]["dense"]
    assert about["speculative_config"] == {"method": "vegas", "policy": "dense"}
    assert about["kv_blocks"] == 7
    assert about["profile"] == {f"{shape}, temperature 0": {"host": []} for shape in ("1000 x 9", "500 x 2")}


def test_sides_that_start_together_measure_in_turns(run: Any) -> None:
    result, order = run("--cases", "1000x9", "--together", "--kv-bytes", "1000", "--sides", "vegas", "stock")
    assert sorted(order[:2]) == ["stock starts", "vegas starts"]
    assert order[2:] == ["vegas measures", "stock measures"]
    assert [row.policy for row in result.rows] == ["vegas", "full"]


def test_imposed_acceptance_and_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [
        "vllm_decode.py",
        "--shape",
        "qwen3-8b",
        "--cases",
        "1000x9",
        "--acceptance",
        "0.9,0.5",
        "--kv-bytes",
        "9",
    ]
    monkeypatch.setattr(sys, "argv", [*command, "--engine", '{"seed": 1}', "--together"])
    job = vllm_decode.job("vegas", vllm_decode.parse(), tmp_path)
    assert job["engine"]["load_format"] == "dummy"
    assert job["engine"]["seed"] == 1
    assert job["engine"]["speculative_config"] == {
        "method": "vegas",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.9, 0.5],
    }
    assert (tmp_path / "config.json").exists()


def test_prompts_differ(tmp_path: Path, chat_model: str) -> None:
    from vegas_spec.engine.loading import load_tokenizer

    tokenizer, documents = load_tokenizer(chat_model), tmp_path / "documents.jsonl"
    documents.write_text('{"text": "Zeppelins. "}\n')
    source, document, other = vllm_prompts.prompt_tokens(300, 3, 100, tokenizer, documents)
    assert [len(prompt) for prompt in (source, document, other)] == [300] * 3
    assert Encoder(tokenizer, "tiny").decode(document).startswith("Zeppelins. Zeppelins. ")
    assert source[:50] != other[:50]
    [shorter] = vllm_prompts.prompt_tokens(200, 1, 100, tokenizer, None)
    assert shorter[:50] != source[:50]
    [random] = vllm_prompts.prompt_tokens(200, 1, 100, None, None)
    assert len(random) == 200
    assert max(random) < 100
