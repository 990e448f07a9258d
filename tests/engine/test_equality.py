"""Two outputs side by side: to their ends, whatever ties lie between."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from engine_cases import as_prompts, generated, greedy, make_llm
from tiny_models import random_prompt

from vegas_spec import LLM, RequestOutput
from vegas_spec.engine.equality import compare, judge
from vegas_spec.engine.outputs import CompletionOutput, RequestStats, Update
from vegas_spec.ties import TIE_GAPS

PROMPTS = [random_prompt(30, seed=1), random_prompt(12, seed=2)]
LENGTH = 16


@pytest.fixture
def plain() -> LLM:
    return make_llm("qwen3", policy="full")


def says(llm: LLM, prompt: Sequence[int], count: int = LENGTH) -> list[int]:
    return generated(llm.generate(as_prompts([prompt]), greedy(count)))[0] if count else []


def second_choice(llm: LLM, text: Sequence[int]) -> tuple[int, float]:
    """The token that the model likes second, and how much less."""
    values, tokens = llm.next_token_logits(text).topk(2)
    return int(tokens[1]), float(values[0] - values[1])


def turned(llm: LLM, prompt: list[int], places: Sequence[int]) -> tuple[list[int], list[float]]:
    """What the model says if it is given its second choice at some places."""
    said = says(llm, prompt)
    gaps = []
    for place in places:
        other, gap = second_choice(llm, [*prompt, *said[:place]])
        said = [*said[:place], other]
        said += says(llm, [*prompt, *said], LENGTH - len(said))
        gaps.append(gap)
    return said, gaps


def output(prompt: list[int], tokens: list[int]) -> RequestOutput:
    return RequestOutput("0", None, prompt, [CompletionOutput(0, "", tokens, [])], RequestStats(6), finished=True)


def allow(monkeypatch: pytest.MonkeyPatch, gap: float) -> None:
    monkeypatch.setitem(TIE_GAPS, "float32", gap)


def test_the_same(plain: LLM) -> None:
    report = compare(plain, plain.with_config(policy="vegas"), as_prompts(PROMPTS), LENGTH)
    assert report.identical
    assert report.agreeing == report.compared == sum(len(tokens) for tokens in generated(report.plain)) > LENGTH
    assert report.ties == report.faults == []
    assert report.to_dict()["acceptance_length"] > 1


@pytest.mark.parametrize("places", [[0], [5], [15], [3, 9], [0, 1, 14]])
def test_after_a_tie_the_rest_is_compared(plain: LLM, monkeypatch: pytest.MonkeyPatch, places: list[int]) -> None:
    said, gaps = turned(plain, PROMPTS[0], places)
    allow(monkeypatch, max(gaps) + 1e-3)
    seen: list[str] = []

    def watch(name: str, update: Update) -> None:
        seen.append(name)

    expected, got = ([output(PROMPTS[0], tokens)] for tokens in (says(plain, PROMPTS[0]), said))
    report = judge(plain, expected, got, ignore_eos=True, watch=watch)
    assert [difference.position for difference in report.ties] == places
    assert [difference.gap for difference in report.ties] == pytest.approx(gaps, abs=1e-4)
    assert report.faults == []
    assert (report.compared, report.agreeing) == (LENGTH, LENGTH - len(places))
    assert not report.identical
    assert set(seen) == ({"after a tie"} if places != [15] else set())


def test_a_fault_behind_a_tie_is_found(plain: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    said, [gap] = turned(plain, PROMPTS[0], [4])
    allow(monkeypatch, gap + 1e-3)
    worst = int(plain.next_token_logits([*PROMPTS[0], *said[:10]]).argmin())
    got = [*said[:10], worst, *said[11:]]
    report = judge(plain, [output(PROMPTS[0], says(plain, PROMPTS[0]))], [output(PROMPTS[0], got)], ignore_eos=True)
    assert [(each.position, each.tie) for each in report.differences] == [(4, True), (10, False)]
    assert report.faults[0].vegas_token == worst
    assert report.faults[0].gap > gap
    assert (report.compared, report.agreeing) == (LENGTH, 9)


def test_a_larger_gap_is_a_fault_and_ends_the_comparison(plain: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    said, [gap] = turned(plain, PROMPTS[0], [4])
    allow(monkeypatch, gap - 1e-3)
    report = judge(plain, [output(PROMPTS[0], says(plain, PROMPTS[0]))], [output(PROMPTS[0], said)], ignore_eos=True)
    assert [(each.position, each.tie) for each in report.differences] == [(4, False)]
    assert (report.compared, report.agreeing) == (LENGTH, 4)


@pytest.mark.parametrize("other", [0, 7])
def test_an_output_that_ends_early_is_a_fault(plain: LLM, other: int) -> None:
    whole = says(plain, PROMPTS[0])
    for expected, got in ((whole, whole[:other]), (whole[:other], whole)):
        report = judge(plain, [output(PROMPTS[0], expected)], [output(PROMPTS[0], got)])
        assert [(each.position, each.tie) for each in report.differences] == [(other, False)]
        assert (report.compared, report.agreeing) == (LENGTH, other)


def test_a_tie_with_the_end_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """One output ends where the other goes on, for two tokens that are nearly equal: a tie, on either side."""
    llm = make_llm("qwen3", policy="full")
    plain_says = says(llm, PROMPTS[0])
    for place in range(1, LENGTH - 1):
        said, [gap] = turned(llm, PROMPTS[0], [place])
        ends = said[place], plain_says[place]
        if not set(ends) & set(plain_says[:place]):  # else the text would end before
            break
    allow(monkeypatch, gap + 1e-3)
    for end in ends:
        monkeypatch.setattr(llm.model.module.generation_config, "eos_token_id", end)
        outputs = []
        for tokens in (plain_says, said):
            stop = tokens.index(end) + 1 if end in tokens else LENGTH
            outputs.append([output(PROMPTS[0], tokens[:stop])])
        report = judge(llm, *outputs)
        assert [(each.position, each.tie) for each in report.differences] == [(place, True)]
        assert report.agreeing == report.compared - 1 == len(outputs[1][0].outputs[0].token_ids) - 1
