"""The cost model against arithmetic, the tuner against a machine of known best setting, ``vegas tune`` end to end."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from vegas_bench.measure.decoding import Decoding
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.results.results import load
from vegas_bench.tune import speed
from vegas_bench.tune.extrapolation import DraftLine, expected_accepted
from vegas_bench.tune.tuner import BUDGETS, GAMMAS, Tuner
from vegas_spec import LLM, config_file
from vegas_spec.cli import app
from vegas_spec.cli.errors import run
from vegas_spec.config import VegasConfig
from vegas_spec.pacing.costs import CostModel, Costs, Overheads

# --- cost model -----------------------------------------------------------------------------------------------------


def test_the_formula() -> None:
    costs = Costs(plain=10, verify=11, draft=3, select=1)
    assert costs.per_token(4, 3.0) == (11 + 4 * 3 + 1) / 4
    assert costs.speedup(4, 3.0) == 10 / 6
    assert costs.speedup(6, 0.0) < 1
    floors = CostModel(weights=100, per_token=3, overheads=Overheads())
    assert floors.costs(tokens=300, read=15) == Costs(plain=1000, verify=1000, draft=145)
    assert floors.costs(300, 300).speedup(6, 6.0) == pytest.approx(1.0)


def test_acceptance_with_another_gamma() -> None:
    assert expected_accepted([0.9, 0.8, 0.4], 2) == pytest.approx(1.7)
    assert expected_accepted([0.9, 0.8, 0.4], 3) == pytest.approx(2.1)
    assert expected_accepted([0.9, 0.8, 0.4], 5) == pytest.approx(2.1 + 0.2 + 0.1)
    assert expected_accepted([0.5], 3) == pytest.approx(0.5 + 0.25 + 0.125)
    assert expected_accepted([0.0, 0.0], 4) == 0
    assert expected_accepted([], 4) == 0


def test_draft_time_by_budget() -> None:
    line = DraftLine([(0.01, 3.1), (0.05, 3.5), (0.1, 4.0)])
    assert (line.fixed, line.slope) == (pytest.approx(3.0), pytest.approx(10.0))
    assert line.at(0.2) == pytest.approx(5.0)
    assert DraftLine([(0.05, 2.0)]).at(0.9) == 2.0
    assert DraftLine([(0.01, 3.0), (0.1, 2.0)]).at(0.9) == pytest.approx(2.5)  # faster with more to read: noise


def test_bytes_of_a_model(chat_model: str) -> None:
    llm = LLM(chat_model)
    size = ModelSize.of(llm.model)
    hidden, inner, vocab, layers = 32, 48, llm.model.vocab_size, 2
    per_layer = hidden * (2 * 64 + 2 * 32) + 3 * hidden * inner + 2 * hidden + 2 * 16
    assert size.weight_bytes == 4 * (layers * per_layer + hidden + vocab * hidden)
    assert size.kv_bytes_per_token == 4 * layers * 2 * 2 * 16


# --- the tuner ------------------------------------------------------------------------------------------------------


PLAIN = Decoding([1.0])


class Machine:
    """A decoder of known costs and acceptance, with or without a clock for its phases."""

    def __init__(self, draft: float, slope: float, skill: float, clock: bool) -> None:
        self.draft, self.slope, self.skill, self.clock = draft, slope, skill, clock
        self.asked: list[tuple[int, float]] = []

    def speed(self, gamma: int, budget: float) -> float:
        return 1 / self.costs(budget).per_token(gamma, sum(self.chances(gamma, budget)))

    def costs(self, budget: float) -> Costs:
        return Costs(plain=1.0, verify=1.05, draft=self.draft + self.slope * budget, select=0.05)

    def chances(self, gamma: int, budget: float) -> list[float]:
        rate = self.skill * budget / (budget + 0.01)
        return [rate**distance for distance in range(1, gamma + 1)]

    def __call__(self, config: VegasConfig) -> Decoding:
        gamma, budget = config.num_speculative_tokens, config.kv_budget
        self.asked.append((gamma, budget))
        costs = self.costs(budget)
        phases = {"draft": gamma * costs.draft, "verify": costs.verify, "accept": 0.0, "select": costs.select}
        speed = self.speed(gamma, budget)
        chances = self.chances(gamma, budget)
        return Decoding([0.99 * speed, speed, 1.01 * speed], sum(chances), chances, phases if self.clock else None)


@pytest.mark.parametrize("clock", [True, False])
@pytest.mark.parametrize(("draft", "slope", "skill"), [(0.1, 1.0, 0.99), (0.3, 0.7, 0.9), (0.5, 4.0, 0.7)])
def test_the_tuner_finds_nearly_the_best_without_trying_everything(
    draft: float, slope: float, skill: float, clock: bool
) -> None:
    machine = Machine(draft, slope, skill, clock)
    tuner = Tuner(machine, VegasConfig(score="logit"), PLAIN)
    found = tuner.run()
    grid = [machine.speed(gamma, budget) for gamma, budget in itertools.product(GAMMAS, BUDGETS)]
    assert machine.speed(found.num_speculative_tokens, found.kv_budget) >= 0.97 * max(grid)
    assert found.score == "logit"
    assert len(set(machine.asked)) == len(machine.asked) < len(BUDGETS) + len(GAMMAS) + 4
    assert {row.step for row in tuner.rows} == {1, 2, 3}
    assert [row.step for row in tuner.rows if row.chosen] == [1, 2, 3]
    last = next(row for row in tuner.rows if row.step == 3 and row.chosen)
    assert (last.num_speculative_tokens, last.kv_budget) == (found.num_speculative_tokens, found.kv_budget)
    for row in tuner.rows:
        point = (row.num_speculative_tokens, row.kv_budget)
        assert (row.tokens_per_second is not None) == (point in machine.asked)
        if row.tokens_per_second is None:
            assert row.predicted_tokens_per_second is not None
            # What was ruled out would not have won.
            best = max(speed for each in tuner.rows for speed in each.tokens_per_second or [])
            assert machine.speed(*point) < best


def test_step_one_stops_where_acceptance_stops_growing() -> None:
    accepted = {0.01: 2.0, 0.02: 4.0, 0.05: 4.95, 0.1: 5.0, 0.2: 5.02, 0.025: 4.1, 0.035: 4.5, 0.07: 4.97}

    def measure(config: VegasConfig) -> Decoding:
        reached = accepted[config.kv_budget]
        return Decoding([(reached + 1) / 1.2], reached, [reached / 6] * 6)

    tuner = Tuner(
        measure,
        VegasConfig(),
        PLAIN,
        budgets=list(accepted)[::-1],
        gammas=[],
    )
    tuner.run()
    assert [row.kv_budget for row in tuner.rows if row.step == 1 and row.chosen] == [0.05]


def test_tiny_budgets_have_neighbours_too() -> None:
    tuner = Tuner(Machine(0.1, 1.0, 0.99, True), VegasConfig(), PLAIN, budgets=[1e-6], gammas=[])
    tuner.run()
    assert sorted(row.kv_budget for row in tuner.rows if row.step == 3) == [1e-6, 1.4e-6, 2e-6]


def test_of_settings_that_repeats_cannot_tell_apart_the_usual_or_the_lesser_is_chosen() -> None:
    """What is 1 % faster here would be slower in the next run: runs of one setting differ by 4 %."""

    def tuned(levels: dict[int, float], usual: VegasConfig) -> tuple[VegasConfig, list[list[float]]]:
        def measure(config: VegasConfig) -> Decoding:
            level = levels[config.num_speculative_tokens] * {0.05: 1.0, 0.025: 1.01}.get(config.kv_budget, 0.9)
            # Drafts cost nothing, and four of them are accepted: the cost model rules nothing out.
            chances = [1.0] * 4 + [0.0] * (config.num_speculative_tokens - 4)
            return Decoding([0.98 * level, level, 1.02 * level], 4.0, chances, {"draft": 0.0, "verify": 1.0})

        tuner = Tuner(measure, usual, Decoding([10.0]), budgets=[0.05], gammas=list(levels))
        chosen = tuner.run()
        return chosen, [[row.value for row in tuner.rows if row.step == step and row.tied] for step in (2, 3)]

    assert tuned({4: 90.0, 6: 100.0, 8: 101.0}, VegasConfig()) == (VegasConfig(), [[6, 8], [0.025, 0.05]])
    unusual = VegasConfig(num_speculative_tokens=8, kv_budget=0.9)
    lesser = VegasConfig(num_speculative_tokens=4, kv_budget=0.025)
    assert tuned({4: 100.0, 6: 101.0, 8: 90.0}, unusual) == (lesser, [[4, 6], [0.025, 0.05]])


def test_budgets_that_come_to_the_same_entries_are_measured_once() -> None:
    machine = Machine(0.1, 1.0, 0.99, True)
    base, budgets = VegasConfig(), [0.025, 0.05, 0.1, 0.2, 0.4]
    tuner = Tuner(machine, base, PLAIN, budgets, [6], lambda budget: max(256, round(1280 * budget)))
    found = tuner.run()
    assert {budget for _, budget in machine.asked} == {0.05, 0.4}
    assert found.kv_budget == 0.05
    assert "budgets 0.025, 0.05, 0.1, 0.2 come to the same entries" in tuner.notes[0]


# --- the command ----------------------------------------------------------------------------------------------------

TUNE = [
    *("--workload", "needle:min_tokens=300,max_tokens=300", "--prompts", "2", "--max-tokens", "24", "--repeats", "2"),
    *("--budgets", "0.05,0.2", "--gammas", "2,4", "--kv-budget-min", "4"),
]


def test_tune_writes_a_config_that_generate_takes(
    chat_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, result = tmp_path / "tuned.toml", tmp_path / "tuning.json"
    command = ["tune", chat_model, *TUNE, "--out", str(out), "--result", str(result)]
    honest, calls = speed.decode_run, list[Any]()

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return honest(*arguments)

    monkeypatch.setattr(speed, "decode_run", interrupted)
    assert run(app, command) == 130
    assert "2 measurements are kept" in " ".join(capsys.readouterr().err.split())
    assert run(app, command) == 0
    shown = capsys.readouterr().out
    for words in ("Step 1", "Step 2", "Step 3", "<- chosen", "times plain decoding"):
        assert words in shown

    stored = load(result)
    assert stored.settings["notes"] == []
    assert {row.step for row in stored.rows} == {1, 2, 3}
    measured = {(row.num_speculative_tokens, row.kv_budget) for row in stored.rows if row.tokens_per_second}
    assert len(calls) == 2 * (1 + len(measured)) + 2  # plain decoding, and the setting that was interrupted
    content = config_file.load(out)
    assert content.config == VegasConfig.from_dict(stored.settings["chosen"])
    assert content.tuned_on["workload"] == TUNE[1]
    assert content.tuned_on["batch"] == 2
    assert content.tuned_on["context"] == 300
    [chosen] = [row for row in stored.rows if row.step == 3 and row.chosen]
    assert chosen.kv_budget == content.config.kv_budget

    generate = ["generate", chat_model, "--prompt", "hello", "--max-tokens", "4", "--json", "--config", str(out)]
    assert run(app, generate) == 0
    said, warned = capsys.readouterr()
    assert json.loads(said)["stats"]["num_speculative_tokens"] == content.config.num_speculative_tokens
    assert "warning" not in warned
    elsewhere = dataclasses.replace(content, tuned_on={**content.tuned_on, "hardware": "another GPU"})
    config_file.save(elsewhere, out)
    assert run(app, generate) == 0
    assert "another GPU" in capsys.readouterr().err


def test_short_prompts_leave_no_budget_to_choose(
    chat_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fewest entries that a draft reads are more than 20 % of them: every budget is the same one."""
    out, result = tmp_path / "tuned.toml", tmp_path / "tuning.json"
    flags = ["--budgets", "0.05,0.2", "--gammas", "2", "--out", str(out), "--result", str(result)]
    assert run(app, ["tune", chat_model, *TUNE[:6], *flags]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "0.05, 0.07, 0.1, 0.2 come to the same entries of these prompts (kv_budget_min is 256)" in said
    assert config_file.load(out).config.kv_budget == 0.05
    stored = load(result)
    assert {row.kv_budget for row in stored.rows} == {0.05}
    assert len(stored.settings["notes"]) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "dense"], "has no budget to tune"),
        (["--out", "tuned.yaml"], "a config file is TOML, or JSON if its name ends in .json; got tuned.yaml"),
        (["--gammas", "4,40"], "num_speculative_tokens must be an integer from 1 to 16; got 40"),
        (["--budgets", "0"], "kv_budget must be"),
        (["--repeats", "1"], "--repeats must be an integer of at least 2; got 1"),
        (["--engine", "other"], "engine must be one of"),
        (["--max-tokens", "3"], "too short to time.*raise --max-tokens"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    chat_model: str, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--out", str(tmp_path / "a.toml"), "--result", str(tmp_path / "a.json")]
    workload = ["--workload", "needle:min_tokens=300,max_tokens=300", "--prompts", "1"]
    assert run(app, ["tune", chat_model, *workload, *files, *flags]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(message, said), said
