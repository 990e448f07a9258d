"""``vegas bench throughput --engine vllm``, ``soak`` and ``tune`` with a process in the place of vLLM's engines."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from vegas_bench.measure import vllm_side
from vegas_bench.measure.job_process import JobProcess
from vegas_bench.measure.model_shapes import SHAPES
from vegas_bench.measure.soak import failure, make_requests
from vegas_bench.measure.vllm_side import speculative_config, variant_of, vllm_sides
from vegas_bench.results.journal import Journal
from vegas_bench.results.results import Result, ResultError, load
from vegas_bench.tune import speed
from vegas_spec import VegasConfig
from vegas_spec.cli import app
from vegas_spec.cli.errors import run
from vegas_spec.config import ConfigError

ENGINE = """
    import json, os, sys, time
    job = json.load(open(sys.argv[-1]))
    done = open(os.environ["DONE"], "a", buffering=1)
    told = job["engine"]["speculative_config"] or {"method": "stock"}
    name = told.get("policy", told["method"])
    print("a line of vLLM's log")
    if job["engine"].get("broken"):
        sys.exit("the engine did not start")
    print(json.dumps({"side": name, "does": "starts", "engine": job["engine"]}), file=done)
    out = open(job["out"], "a", buffering=1)
    size = {"weight_bytes": 1000, "kv_bytes_per_token": 1}
    print(json.dumps({"started": {"size": size, "kv_blocks": 7, "seconds_to_start": 1.5}}), file=out)
    sys.stdin.readline()
    verify = {"stock": None, "dense": {"draft": 30.0, "verify": 10.0}}
    for task in job["tasks"]:
        lengths = [len(prompt) for prompt in task.get("prompts", ())]
        print(json.dumps({"side": name, "does": task["measure"], "lengths": lengths}), file=done)
        if name == os.environ.get("FAILS") and "500" in task["key"]:
            sys.exit("this side fails")
        if task["measure"] == "decode":
            measured = {
                "tokens_per_second": [float(len(lengths)) + n for n in range(task["repeats"])],
                "accepted_per_iteration": None if name == "stock" else 5.0,
                "milliseconds": verify.get(name, {"draft": 6.0, "verify": 10.8}),
                "profile": {"host": []} if task["profile"] else {},
            }
        elif task["measure"] == "first_token":
            measured = [0.5] * (len(lengths) - 1)
        elif task["measure"] == "serve":
            print(json.dumps({"served": 1}), file=out)
            answers = [{"prompt": each["prompt"], "tokens": [1]} for each in task["requests"]]
            drafts = 0 if told["fall_back"] else 9
            counts = {"seconds": 3.0, "sent": len(answers), "finished": len(answers), "aborted": 0, "preemptions": 0}
            acceptance = {"drafts": drafts, "accepted_per_iteration": 4.0 if drafts else None}
            measured = {**counts, **acceptance, "free_bytes": [], "answers": answers}
        elif task["measure"] == "judge":
            gaps = json.loads(os.environ.get("GAPS", "[]"))
            counts = {"requests": len(task["answers"]), "stock_differing_from_itself": 1}
            measured = {**counts, "gaps": gaps, "tie": 0.25}
        print(json.dumps({"key": task["key"], "measured": measured}), file=out)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """A program in Python's place that answers as `vegas_bench.measure.vllm_engine` does; tells what it has done."""
    script, done = tmp_path / "python", tmp_path / "done"
    script.write_text(f"#!{sys.executable}\n{textwrap.dedent(ENGINE)}")
    script.chmod(0o755)
    monkeypatch.setattr(vllm_side, "sys", type("Sys", (), {"executable": str(script)}))
    monkeypatch.setattr(vllm_side, "check_vllm", lambda: None)
    monkeypatch.setenv("DONE", str(done))

    def done_since() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in done.read_text().splitlines()]
        done.write_text("")
        return lines

    return done_since


Engine = Callable[[], list[dict[str, Any]]]


def bench(out: Path, *flags: str) -> int:
    return run(app, ["bench", "throughput", "--engine", "vllm", "--workload", "texts", "--out", str(out), *flags])


def steps(done: list[dict[str, Any]]) -> list[str]:
    return [f"{each['side']} {each['does']}" for each in done]


# --- throughput -----------------------------------------------------------------------------------------------------


def test_sides_one_after_another(
    engine: Engine,
    chat_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.json"
    flags = ["--cases", "1000x9,500x2", "--repeats", "2", "--profile", "--first-token", "700", "--kv-budget-min", "1"]
    monkeypatch.setenv("FAILS", "ngram")
    assert bench(out, chat_model, *flags, "--policies", "full,ngram,vegas:fall_back=true,dense") == 2
    said = capsys.readouterr().err
    assert "vLLM (ngram gamma=6) ended with exit code 1" in said
    assert "this side fails" in said
    assert "leave this side out" in said
    done = engine()
    measured = ["starts", "first_token", "decode", "decode"]
    assert steps(done) == [f"{side} {what}" for side in ("stock", "ngram", "vegas", "dense") for what in measured]
    assert [each["lengths"] for each in done[1:4]] == [[700] * 5, [1000] * 9, [500] * 2]
    assert (out.parent / "out.json.vllm.ngram.log").exists()

    # What was measured stays.
    assert bench(out, chat_model, *flags, "--policies", "full,vegas:fall_back=true,dense", "--json") == 0
    assert not (tmp_path / "done").read_text()
    result = load(out)
    assert json.loads(capsys.readouterr().out)["settings"] == result.settings
    rows = {(row.policy, row.context): row for row in result.rows}
    assert list(rows) == [(side, c) for c in (1000, 500) for side in ("full", "vegas:fall_back=true", "dense")]
    assert rows["full", 1000].tokens_per_second == [9.0, 10.0]
    assert rows["full", 1000].config == {}
    assert rows["full", 1000].accepted_per_iteration is None
    vegas = rows["vegas:fall_back=true", 1000]
    assert vegas.config["fall_back"] is True
    assert rows["dense", 500].config["fall_back"] is False
    assert vegas.selection_overhead == pytest.approx(0.08)
    assert vegas.predicted_speedup == pytest.approx(6 * 10_000 / (10_000 + 6 * (1000 + 450)))
    assert rows["dense", 500].predicted_speedup == pytest.approx(6 / 7)
    assert rows["dense", 500].selection_overhead is None
    assert result.settings["sides_ran"] == "one after another"
    about = result.settings["sides"]["dense gamma=6"]
    assert about["speculative_config"]["policy"] == "dense"
    assert (about["kv_blocks"], about["seconds_to_start"]) == (7, 1.5)
    assert about["seconds_to_first_token"] == {"700": [0.5] * 4}
    assert about["profile"] == {f"{shape}, temperature 0": {"host": []} for shape in ("1000 x 9", "500 x 2")}


def test_drafts_of_vllms_own_are_sides(engine: Engine, chat_model: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    policies = "full,ngram,ngram:prompt_lookup_max=5,suffix"
    assert bench(out, chat_model, "--contexts", "100", "--policies", policies, "--gammas", "4") == 0
    told = [each["engine"]["speculative_config"] for each in engine() if each["does"] == "starts"]
    ngram = {"num_speculative_tokens": 4, "method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    assert told == [None, ngram, {**ngram, "prompt_lookup_max": 5}, {"method": "suffix"}]
    rows = load(out).rows
    assert [row.policy for row in rows] == policies.split(",")
    assert [row.config for row in rows[1:]] == told[1:]
    assert all(row.predicted_speedup is None for row in rows)


def test_sides_that_start_together_measure_in_turns(engine: Engine, chat_model: str, tmp_path: Path) -> None:
    flags = ["--cases", "100x9", "--together", "--kv-bytes", "1000", "--policies", "vegas,full"]
    assert bench(tmp_path / "out.json", chat_model, *flags) == 0
    done = engine()
    assert sorted(steps(done)[:2]) == ["stock starts", "vegas starts"]
    assert steps(done)[2:] == ["vegas decode", "stock decode"]
    for each in done[:2]:
        assert each["engine"]["kv_cache_memory_bytes"] == 1000
        assert each["engine"]["gpu_memory_utilization"] == pytest.approx(0.45)
        assert each["engine"]["max_num_seqs"] == 9
        assert each["engine"]["max_model_len"] == 100 + 128 + 64
    result = load(tmp_path / "out.json")
    assert [row.policy for row in result.rows] == ["vegas", "full"]
    assert result.settings["sides_ran"] == "together"


def test_a_shape_with_imposed_acceptance(engine: Engine, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--shape", "qwen3-8b", "--acceptance", "0.9,0.5", "--cases", "100x3", "--engine-args", '{"seed": 1}']
    assert bench(out, *flags, "--policies", "full,vegas,stream:num_speculative_tokens=1") == 0
    [stock, *_, vegas, _, stream, batch] = engine()
    assert vegas["engine"]["load_format"] == "dummy"
    assert vegas["engine"]["kv_transfer_config"]["kv_connector_extra_config"]["fill_std"] == 1.0
    assert vegas["engine"]["seed"] == 1
    assert Path(vegas["engine"]["model"], "config.json").exists()
    assert stock["engine"]["speculative_config"] is None
    told = vegas["engine"]["speculative_config"]
    assert told["num_speculative_tokens"] == 2
    assert told["rejection_sample_method"] == "synthetic"
    assert told["synthetic_acceptance_rates"] == [0.9, 0.5]
    assert stream["engine"]["speculative_config"]["synthetic_acceptance_rates"] == [0.9]
    assert batch["lengths"] == [100] * 3
    result = load(out)
    assert result.model == result.settings["shape"] == "qwen3-8b"
    assert result.settings["imposed_acceptance"] == "0.9,0.5"
    assert result.settings["workload"] == "random tokens"


@pytest.mark.parametrize("shape", ["gpt-oss-20b", "qwen3-1.7b", "qwen3-8b"])
def test_shapes_are_configurations_that_hugging_face_reads(shape: str) -> None:
    rope = transformers.AutoConfig.from_pretrained(SHAPES[shape]).rope_parameters
    if shape == "gpt-oss-20b":
        published = {"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": False}
        assert rope == {**published, "original_max_position_embeddings": 4096, "rope_theta": 150_000}
    else:
        assert rope["rope_theta"] == 1_000_000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "what is measured is a MODEL, or with --engine vllm a --shape"),
        (["some/model", "--shape", "qwen3-8b"], "give one of them"),
        (["--shape", "qwen3-80b"], "--shape must be one of gpt-oss-20b, qwen3-1.7b, qwen3-8b"),
        (["some/model", "--acceptance", "0.9"], "give --shape, or leave it out"),
        (["--shape", "qwen3-8b", "--acceptance", "0.9,x"], "--acceptance must be numbers separated by commas; got 'x'"),
        (["--shape", "qwen3-8b", "--acceptance", "0.9", "--gammas", "2"], "needs a rate for each draft; got 1"),
        (["--shape", "qwen3-8b", "--first-token", "100"], "cache is filled with noise"),
        (["--shape", "qwen3-8b", "--policies", "full,ngram"], "ngram and suffix look drafts up in a text"),
        (["--shape", "qwen3-8b", "--together"], "--together needs --kv-bytes"),
        (["--shape", "qwen3-8b", "--cases", "100"], "--cases must be context x batch, such as 28000x32"),
        (["--shape", "qwen3-8b", "--cases", "100x0"], "a batch must be an integer of at least 1; got 0"),
        (["--shape", "qwen3-8b", "--engine-args", "{"], "--engine-args must be a JSON object"),
        (["--shape", "qwen3-8b", "--policies", "vegas:fall_back=no"], "fall_back must be one of true, false"),
        (["--shape", "qwen3-8b", "--policies", "oracle"], "vLLM drafts with policy"),
        (["--shape", "qwen3-8b", "--attention", "kernels"], "--attention is the embedded engine's"),
        (["--shape", "qwen3-8b", "--device", "cuda:1"], "--device is the embedded engine's"),
        (["--shape", "qwen3-8b", "--policies", "ngrm"], "policy must be one of"),
    ],
)
@pytest.mark.usefixtures("engine")
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path / "a.json", *flags) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "done").exists()


def test_policies_in_vllms_words() -> None:
    [full, vegas, imposed] = vllm_sides(
        ["full", "vegas:rejection_sample_method=block", "stream"], [0.05], [6], kv_budget_min=64
    )
    assert speculative_config(full) is None
    asked = speculative_config(vegas)
    assert asked is not None
    assert asked["method"] == "vegas"
    assert asked["fall_back"] is False
    assert asked["kv_budget_min"] == 64
    assert asked["rejection_sample_method"] == "block"
    with pytest.raises(ConfigError, match="a rate for each draft; got 2, and stream drafts 6"):
        speculative_config(imposed, [0.9, 0.8])
    with pytest.raises(ConfigError, match="vLLM"):
        speculative_config(variant_of(VegasConfig(policy="oracle")))


def test_selection_within_drafts_is_not_measured_from_outside(engine: Engine, chat_model: str, tmp_path: Path) -> None:
    policies = ["--policies", "vegas,quest,specextend,dense"]
    assert bench(tmp_path / "a.json", chat_model, "--contexts", "100", *policies) == 0
    overheads = [row.selection_overhead for row in load(tmp_path / "a.json").rows]
    assert overheads == [pytest.approx(0.08), None, None, None]


def test_a_side_that_does_not_start(tmp_path: Path, engine: Engine) -> None:
    process = vllm_side.side_process("a side", {"broken": True, "speculative_config": None}, [], tmp_path / "log")
    with (
        process,
        pytest.raises(ResultError, match=r"(?s)vLLM \(a side\) ended .* 1; its log, .*log, ends with:.*start"),
    ):
        list(process.lines())
    assert "a line of vLLM's log" in (tmp_path / "log").read_text()


def test_a_program_ends_with_the_one_that_waits_for_it() -> None:
    waits = "from vegas_bench.measure.job_process import wait_for_turn; wait_for_turn()"
    with JobProcess("waiting", [sys.executable, "-c", waits], {}) as process:
        process.begin()
        assert list(process.lines()) == []
    # Its pipe closes with nothing in it, as the end of this process would close it.
    left = subprocess.run([sys.executable, "-c", waits], input=b"", capture_output=True, check=False)
    assert left.returncode == 1
    assert b"nobody waits for this program any more" in left.stderr


# --- tune -----------------------------------------------------------------------------------------------------------


def test_tuning_asks_vllm_for_each_setting_once(engine: Engine, tmp_path: Path) -> None:
    task = {"prompts": [[1, 2]], "temperature": 0.0, "max_tokens": 8, "repeats": 2}
    with Journal(tmp_path / "journal", {}) as journal:
        measure = speed.WorkloadSpeed(speed.in_vllm({"model": "m"}, task, tmp_path / "log"), journal)
        plain = measure(VegasConfig(policy="full"))
        assert plain.accepted_per_iteration is None
        assert plain.speed == 1.5
        measure(VegasConfig(kv_budget=0.1))
        measure(VegasConfig(kv_budget=0.1))
        assert list(journal.rows) == ["full", "vegas gamma=6 budget=0.1"]
    told = [each["engine"]["speculative_config"] for each in engine() if each["does"] == "starts"]
    assert [each and each["kv_budget"] for each in told] == [None, 0.1]
    assert not (tmp_path / "log").exists()


# --- soak -----------------------------------------------------------------------------------------------------------

SOAK = ["--seconds", "3", "--rate", "5", "--min-prompt-tokens", "10", "--max-prompt-tokens", "200", "--max-tokens", "9"]


@pytest.mark.parametrize(
    ("flags", "gaps", "code", "said"),
    [
        ([], "[0.1]", 0, "passed"),
        ([], "[0.1, 0.3]", 1, "of 9 requests differ from stock vLLM by more than a tie"),
        (["--policy", "vegas:fall_back=true"], "[]", 1, "failed: nothing was drafted, so that the soak says nothing"),
    ],
)
def test_a_soak_passes_if_something_was_drafted_and_nothing_is_wrong(
    engine: Engine,
    chat_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    gaps: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("GAPS", gaps)
    out = tmp_path / "soak.json"
    assert run(app, ["bench", "soak", chat_model, *SOAK, "--out", str(out), *flags]) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert said in shown
    assert steps(engine()) == ["vegas starts", "vegas serve", "stock starts", "stock judge"]
    stored = json.loads(out.read_text())
    assert stored["settings"]["speculative_config"]["fall_back"] is (flags != [])
    assert (stored["failure"] is None) == (code == 0)
    assert stored["environment"]["hardware"]
    assert run(app, ["bench", "soak", chat_model, *SOAK, "--out", str(out), *flags]) == 2
    assert "is there already; add --restart to replace it" in " ".join(capsys.readouterr().err.split())
    assert stored["judged"]["ties"] == [gap for gap in json.loads(gaps) if gap <= 0.25]
    with pytest.raises(ResultError, match="is not a result"):  # no report shows it
        Result.from_dict(stored)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "full"], "a soak is of a policy that drafts; got full"),
        (["--policy", "ngram"], "a soak is of a policy that drafts; got ngram"),
        (["--rate", "0"], "--rate must be a number above 0; got 0.0"),
        (["--min-prompt-tokens", "300"], "--min-prompt-tokens must be an integer from 1 to 200; got 300"),
        (["--max-prompt-tokens", "2000"], "more than the model's context of 1024 tokens"),
    ],
)
@pytest.mark.usefixtures("engine")
def test_soaks_that_are_refused(
    chat_model: str, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["bench", "soak", chat_model, *SOAK, "--out", str(tmp_path / "a.json"), *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_requests_of_a_soak() -> None:
    texts = [list(range(1000 * number, 1000 * number + 800)) for number in range(4)]
    requests = make_requests(texts, seconds=100, rate=3, shortest=20, max_tokens=50)
    assert requests == make_requests(texts, seconds=100, rate=3, shortest=20, max_tokens=50)
    assert 240 < len(requests) < 360
    times = [each.at for each in requests]
    assert times == sorted(times)
    assert times[-1] < 100
    lengths = sorted(len(each.prompt) for each in requests)
    assert lengths[0] >= 20
    assert lengths[-1] <= 800
    assert 100 < lengths[len(lengths) // 2] < 160  # between 20 and 800 that is half of the orders of magnitude
    assert all(8 <= each.max_tokens <= 50 for each in requests)
    aborted = [each for each in requests if each.aborted_after is not None]
    assert 0.05 < len(aborted) / len(requests) < 0.15
    assert all(0 < each.aborted_after < each.max_tokens for each in aborted if each.aborted_after)


def test_a_soak_in_which_nothing_finished_says_nothing() -> None:
    found = {"served": {"finished": 0, "drafts": 3}, "judged": {"faults": [], "requests": 0}}
    assert "nothing was judged" in str(failure(found))
