"""``vegas inspect``: what is packed is what was selected, and the page shows it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import inspection_cases as cases
import numpy as np
import pytest
import torch
from browser import DESKTOP, PHONE, needs_browser, opened
from test_cli_generate import byte_tokenizer
from tiny_models import random_prompt, tiny_model

from vegas_bench.inspect.observe import Inspection, InspectionError, inspect
from vegas_bench.inspect.packing import UNKNOWN, members, pack_sets, pack_shares
from vegas_bench.inspect.page import inspection_page
from vegas_bench.inspect.pieces import CONTINUED, token_texts
from vegas_bench.inspect.recorder import SelectionTrace
from vegas_spec import LLM, SamplingParams
from vegas_spec.cli import app
from vegas_spec.cli.errors import run

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
BUDGET = {"kv_budget": 0.1, "kv_budget_min": 8, "num_speculative_tokens": 4}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(tiny_model("qwen2"), **BUDGET)


@pytest.fixture(scope="module")
def prompt() -> dict[str, Any]:
    return {"prompt_token_ids": random_prompt(120)}


@pytest.fixture(scope="module")
def seen(llm: LLM, prompt: dict[str, Any]) -> Inspection:
    return inspect(llm, prompt, PARAMS)


def unpack(packed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Undo `pack_sets`, one iteration after the other, as the page does."""
    rows = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8).reshape(*shape[:-1], -1).copy()
    for number in range(1, len(rows)):
        rows[number] ^= rows[number - 1]
    return np.unpackbits(rows, axis=-1, bitorder="little")[..., : shape[-1]].astype(bool)


def test_sets_are_packed_without_loss():
    draw = torch.Generator().manual_seed(1)
    for length in (8, 13, 200):
        iterations = [torch.randint(-1, length, (3, 2, 7), generator=draw) for _ in range(5)]
        packed, sizes = pack_sets(iterations, length)
        found = unpack(packed, (5, 3, 2, length))
        for number, positions in enumerate(iterations):
            for layer in range(3):
                for head in range(2):
                    own = {int(p) for p in positions[layer, head] if p >= 0}
                    assert {int(p) for p in found[number, layer, head].nonzero()[0]} == own
        assert sizes == sorted(sizes)
        assert len(packed) - sizes[-1] <= 16


def test_shares_are_packed():
    packed = np.frombuffer(base64.b64decode(pack_shares(torch.tensor([0.0, 0.5, 1.0, float("nan")]))), np.uint8)
    assert packed.tolist() == [0, 127, 254, UNKNOWN]


def test_texts_join_to_the_whole_and_characters_stay_whole():
    tokenizer = byte_tokenizer()
    text = "a naïve  cache\n🙂 </script>\t"
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    texts = token_texts(tokenizer, [1, *tokens])
    assert texts[0] == "<s>"
    assert "".join(texts[1:]).replace(CONTINUED, "") == text
    assert texts[1 + len("a naïv".encode()) - 3] == "ï"
    assert len(texts) == len(tokens) + 1
    assert token_texts(tokenizer, tokens[-4:-1]) == ["p", "t", ">"]
    assert token_texts(None, [3, 5]) == ["3 ", "5 "]
    cut = tokenizer("🙂", add_special_tokens=False).input_ids[:2]  # an output may end within a character
    assert token_texts(tokenizer, cut) == ["\ufffd", "\ufffd"]


def test_what_is_shown_is_what_was_selected(llm: LLM, prompt: dict[str, Any], seen: Inspection):
    trace = SelectionTrace()
    [output] = llm.generate([prompt], PARAMS, trace=trace)
    assert output.outputs[0].token_ids == seen.output.outputs[0].token_ids
    assert len(seen.looks) == len(trace.iterations) > 2
    previous: Any = None
    first = members(trace.iterations[0].positions[0], seen.length)
    for look, each in zip(seen.looks, trace.iterations, strict=True):
        assert torch.equal(look.positions, each.positions[0])
        assert (look.prefix_len, look.drafted, look.accepted) == (each.prefix_len, each.drafted, each.accepted)
        own = members(each.positions[0], seen.length)
        for layer in range(4):
            for head in range(2):
                size = int(own[layer, head].sum())
                with_first = int((own & first)[layer, head].sum()) / size
                assert float(look.of_first[layer, head]) == pytest.approx(with_first)
                if previous is not None:
                    kept = int((own & previous)[layer, head].sum()) / size
                    assert float(look.kept[layer, head]) == pytest.approx(kept)
        previous = own
    assert seen.texts == [f"{token} " for token in (*prompt["prompt_token_ids"], *output.outputs[0].token_ids)]


def test_figures(seen: Inspection):
    figures = json.loads(json.dumps(seen.to_dict(), allow_nan=False))
    assert figures["prompt_tokens"] == 120
    assert figures["generated_tokens"] == 24
    assert 0 < figures["recall"] < 1
    assert figures["mass"] <= figures["oracle_mass"]
    shares = [each["share"] for each in figures["most_chosen"]]
    assert shares == sorted(shares, reverse=True)
    best = figures["most_chosen"][0]["position"]
    sets = [members(look.positions, seen.length)[..., best] for look in seen.looks if look.prefix_len > best]
    assert shares[0] == pytest.approx(float(torch.stack(sets).float().mean()), abs=1e-4)


@pytest.mark.parametrize("policy", ["stream", "quest", "specextend", "oracle"])
def test_baselines_can_be_inspected(llm: LLM, prompt: dict[str, Any], policy: str):
    baseline = llm.with_config(policy=policy)
    found = inspect(baseline, prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    assert len(found.looks) > 1
    for look in found.looks:
        sizes = members(look.positions, look.prefix_len).sum(-1)
        assert (look.positions < look.prefix_len).all()
        assert ((sizes > 0) & (sizes < look.prefix_len)).all()
        if policy in ("stream", "oracle"):  # the others read whole pages, or chunks
            assert (sizes == baseline.config.budget(look.prefix_len)).all()
    html = inspection_page(found)
    assert f"policy {policy}" in html
    best = found.most_chosen()[0]
    assert f'"position":{best["position"]},' in html


@pytest.mark.parametrize("policy", ["dense", "full"])
def test_a_policy_that_selects_nothing_is_refused(llm: LLM, prompt: dict[str, Any], policy: str):
    with pytest.raises(InspectionError, match=f"policy {policy} selects nothing"):
        inspect(llm.with_config(policy=policy), prompt, PARAMS)


def test_an_output_without_drafts_is_refused(llm: LLM, prompt: dict[str, Any]):
    with pytest.raises(InspectionError, match="nothing was selected"):
        inspect(llm, prompt, SamplingParams(max_tokens=1))


def test_a_page_of_many_iterations_is_thinned_out():
    found = cases.inspection(looks=9)
    _, sizes = pack_sets([look.positions for look in found.looks], found.length)
    html = inspection_page(found, most_bytes=sizes[-1] - 1)
    assert "one in 2 is shown" in html
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, flags=re.S)[1])  # type: ignore[index]
    assert [look["number"] for look in data["looks"]] == [0, 2, 4, 6, 8]
    packed = re.search(r'id="packed">(.*?)</script>', html)[1]  # type: ignore[index]
    sets = unpack(packed, (5, 4, 2, found.length))
    for number, look in enumerate(found.looks[::2]):
        assert np.array_equal(sets[number], members(look.positions, found.length).numpy())


def test_the_command(chat_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, page = tmp_path / "prompt.txt", tmp_path / "out" / "inspect.html"
    file.write_text("Hier steht <b>naïver</b> Text. 🙂\n" * 8, encoding="utf-8")
    arguments = [chat_model, "--prompt-file", str(file), "-o", str(page), "--max-tokens", "16", "--ignore-eos"]
    assert run(app, ["inspect", *arguments, "--kv-budget-min", "8", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["page"] == str(page)
    assert figures["config"]["kv_budget_min"] == 8
    html = page.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, flags=re.S)[1])  # type: ignore[index]
    assert "".join(data["tokens"]).replace(CONTINUED, "").startswith("Hier steht <b>naïver</b> Text. 🙂\n")
    assert "<b>naïver" not in html


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one prompt"),
        (["--prompt", "abc", "--policy", "dense"], "policy dense selects nothing"),
        (["--prompt", "abc", "--max-tokens", "1"], "nothing was selected"),
        (["--prompt", "abc", "-o", "."], "--output must be a file; . is a folder"),
        (["--prompt-file", __file__, "-o", __file__], "--output must be another file than the prompt's"),
        (["--prompt", "abc", "--kv-budget", "2"], "kv_budget must be"),
    ],
)
def test_bad_input(chat_model: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert run(app, ["inspect", chat_model, "--ignore-eos", "--max-tokens", "4", *arguments]) == 2
    output = capsys.readouterr()
    assert says in output.err
    assert output.out == ""


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Inspection:
    return cases.inspection(tokens=3000, prompt=2900)


@pytest.fixture(scope="module")
def page(found: Inspection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "inspect.html"
    path.write_text(inspection_page(found), encoding="utf-8")
    return path


def ready(seen: Any) -> Any:
    seen.page.wait_for_selector("html[data-ready]", state="attached")
    return seen.page


@needs_browser
@pytest.mark.browser
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(chromium: Any, page: Path, size: dict[str, Any], scheme: str):
    with opened(chromium, page, color_scheme=scheme, **size) as seen:
        tab = ready(seen)
        assert seen.overflow() == 0
        before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.click("#theme")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
        assert tab.locator("#drift polyline").count() == 3
        assert tab.locator("#layers polyline").count() == 3
        assert seen.overflow() == 0
        seen.check_quiet(page)


@needs_browser
@pytest.mark.browser
def test_the_text_is_the_prompts_and_its_colours_are_the_counts(chromium: Any, page: Path, found: Inspection):
    with opened(chromium, page, **DESKTOP) as seen:
        tab = ready(seen)
        whole = "".join(found.texts[: found.length])
        assert tab.evaluate("pane.textContent.replaceAll('↵', '').replaceAll('⇥   ', '\\t')") == whole
        for look, layer, head in ((0, -1, -1), (5, -1, -1), (3, 2, -1), (3, 2, 1), (4, -1, 0)):
            tab.select_option("#layer", str(layer))
            tab.select_option("#head", str(head))
            tab.evaluate(
                f"at => {{ at.value = {look}; at.dispatchEvent(new Event('input')); }}",
                tab.query_selector("#iteration"),
            )
            sets = members(found.looks[look].positions, found.length)
            sets = sets[slice(None) if layer < 0 else [layer]][:, slice(None) if head < 0 else [head]].flatten(0, 1)
            share = sets.float().mean(0)
            wanted = [0 if s == 0 else max(1, int(np.ceil(8 * np.sqrt(s) - 1e-6))) for s in share.tolist()]
            assert tab.evaluate("[...levels]") == wanted
            shown = tab.eval_on_selector_all("#text [data-i]", "all => all.map(e => [+e.dataset.i, e.className])")
            assert len(shown) > 200
            for position, classes in shown:
                level = re.search(r"h(\d)", classes)
                assert (int(level[1]) if level else 0) == wanted[position]
        assert "Iteration 4" in tab.inner_text("#now")
        assert len(shown) < found.length  # the rest is plain text until it comes near
        tab.check("#all")
        everything = torch.stack([members(look.positions, found.length)[:, 0] for look in found.looks]).flatten(0, 1)
        counted = tab.evaluate("[...countChosen([...Array(numLooks).keys()], range(-1, numLayers), [0]).counts]")
        assert counted[: found.length] == everything.sum(0).tolist()
        seen.check_quiet(page)


@needs_browser
@pytest.mark.browser
def test_hover_tap_map_and_charts(chromium: Any, page: Path, found: Inspection):
    with opened(chromium, page, **DESKTOP) as seen:
        tab = ready(seen)
        tab.hover("#text [data-i='2']")
        tab.wait_for_function("document.getElementById('token').textContent.includes('2 of')")
        assert "8 of 8 sets (100.0 %)" in tab.inner_text("#token")
        box = tab.locator("#map").bounding_box()
        tab.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + 5)
        assert tab.evaluate("pane.scrollTop") > 0
        near = tab.eval_on_selector_all("#text [data-i]", "all => all.map(e => +e.dataset.i)")
        assert min(near) < 0.9 * found.length < max(near)
        width = tab.locator("#drift").bounding_box()["width"]
        tab.click("#drift", position={"x": width - 12, "y": 60})
        assert tab.input_value("#iteration") == "5"
        tab.click("#back")
        assert tab.input_value("#iteration") == "4"
        tab.locator("#chosen button").first.click()
        assert tab.locator("#text .own").count() == 1
        seen.check_quiet(page)
    with opened(chromium, page, **PHONE) as seen:
        tab = ready(seen)
        assert not tab.is_visible("#details")
        tab.tap("#text [data-i='1']")
        assert tab.is_visible("#details")
        tab.tap("#close")
        assert not tab.is_visible("#details")
        seen.check_quiet(page)
