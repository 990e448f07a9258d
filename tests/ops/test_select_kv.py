"""select_kv against its plain-torch reference and the definition in vegas_spec.selection."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.ops.selection import POISON, check, launch, make_plan, make_table, reference, run
from vegas_spec.ops import select_kv
from vegas_spec.ops.levels import LEVELS, STEPS, decay_levels, to_levels
from vegas_spec.ops.record import STEP
from vegas_spec.ops.select_kv import FIRST_POSITIONS, merge_heads
from vegas_spec.ops.tuning import SELECT
from vegas_spec.selection import look_ahead, select_positions


@pytest.mark.parametrize("levels", [1, 3, LEVELS])
@pytest.mark.parametrize("block_size", [16, 48])
def test_ragged_rows_with_few_and_many_ties(device, levels, block_size):
    """Lengths 0 and 1, a budget of 0, of everything, and more than everything; all-equal scores."""
    prefix_lens = [100, 1, 0, 33, 64, 16, 300]
    plan = make_plan(prefix_lens, device, levels=levels)
    check(plan, prefix_lens, [20, 1, 5, 0, 64, 99, 150], device, block_size=block_size, tail=5)


def test_more_heads_than_programs(device):
    prefix_lens = [70] * 396 if device.type == "cuda" else [70] * 12
    plan = make_plan(prefix_lens, device, levels=30)
    assert plan.programs[0, STEP.value] > 0
    check(plan, prefix_lens, [20] * len(prefix_lens), device, tail=3)


def test_is_the_definition(device):
    """The positions are those of `select_positions` for the levels as scores: ties go to the larger position."""
    prefix_lens, counts = [200, 37], [50, 8]
    plan = make_plan(prefix_lens, device, levels=20)
    scores = torch.full((2, 2, 200), -torch.inf)
    for request, n in enumerate(prefix_lens):
        offset = int(plan.score_offsets[request])
        scores[request, :, :n] = plan.levels[:, offset : offset + n].float().cpu()
    want = select_positions(scores, torch.tensor(prefix_lens), torch.tensor(counts))
    _, positions = check(plan, prefix_lens, counts, device)
    positions = positions.cpu().long()
    for request, count in enumerate(counts):
        assert torch.equal(positions[request, :, :count], want[request, :, :count])


@pytest.fixture
def short_parts(monkeypatch):
    """Lists are cut every 16 positions, so that borders are many."""
    monkeypatch.setitem(launch.__globals__, "SELECT", dataclasses.replace(SELECT, rank_chunk=16))


@pytest.mark.parametrize("lookahead", [0.5, 0.7, 0.01, 0.98])
@pytest.mark.parametrize("levels", [40, LEVELS])
def test_scores_flow_forward(device, short_parts, lookahead, levels):
    """What is selected is the same, however it is cut: no border shows."""
    prefix_lens = [100, 1, 0, 33, 64, 300]
    plan = make_plan(prefix_lens, device, kv_heads=1, levels=levels, lookahead=lookahead)
    assert plan.parts(len(prefix_lens)) > 1
    check(plan, prefix_lens, [20, 1, 5, 0, 64, 150], device, tail=5)


def test_scores_flow_as_far_as_they_last(device, short_parts):
    """A single high score, through many parts and chunks: half of it is left at the next key, and so on for 64 keys."""
    plan = make_plan([600], device, kv_heads=1, levels=1, lookahead=0.5)
    plan.levels[0, 100] = LEVELS - 1
    _, positions = check(plan, [600], [64], device)
    assert positions[0, 0].tolist() == list(range(100, 164))


@pytest.mark.parametrize("lookahead", [0.5, 0.7])
def test_is_the_definition_of_look_ahead(device, short_parts, lookahead):
    """Levels flow as the scores do that they stand for, with the decay that whole levels can have."""
    plan = make_plan([300], device, kv_heads=2, seed=3, lookahead=lookahead)
    scores = (plan.levels[:, :300].double() / STEPS["weight"]).exp2()[None].cpu()
    ahead = look_ahead(scores, 2 ** (-decay_levels(lookahead) / STEPS["weight"]))
    want = select_positions((ahead.log2() * STEPS["weight"]).round(), torch.tensor([300]), torch.tensor([60]))
    _, positions = check(plan, [300], [60], device)
    assert torch.equal(positions.cpu().long(), want)


def test_heads_flow_together(device, short_parts):
    """Heads are summed before their scores flow."""
    plan = make_plan([300], device, kv_heads=2, granularity="layer", levels=1, lookahead=0.5)
    plan.levels[0, 50], plan.levels[1, 90] = 3000, 3001
    counts = torch.tensor([20], dtype=torch.int32, device=device)
    _, positions = run(launch, plan, counts, make_table([300], 0, 16, device))
    assert positions[0, 0].tolist() == [*range(50, 60), *range(90, 100)]


def test_decays_that_are_none(device):
    for lookahead in (1.0, -0.5, float("nan")):
        with pytest.raises(ValueError, match="lookahead must be from 0 to below 1"):
            make_plan([50], device, lookahead=lookahead)
    plan = make_plan([50], device, lookahead=0.5)
    counts = torch.tensor([10], dtype=torch.int32, device=device)
    slots = torch.zeros(1, 2, 10, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="score must be 'weight' with a plan of lookahead; got 'logit'"):
        select_kv(plan, counts, counts[None], 16, slots=slots, score="logit")
    assert [decay_levels(each) for each in (0, 0.5, 0.999, 1e-9)] == [0, 64, 1, 1913]


@pytest.mark.parametrize("score", ["weight", "logit"])
def test_heads_together(device, score):
    longest = 5000 if device.type == "cuda" else 700
    prefix_lens = [longest, 7] if device.type == "cpu" else [longest, 7, 0]
    plan = make_plan(prefix_lens, device, kv_heads=3, granularity="layer", seed=1)
    counts = torch.tensor([300, 3, 0][: len(prefix_lens)], dtype=torch.int32, device=device)
    table = make_table(prefix_lens, 0, 16, device)
    slots, positions = run(launch, plan, counts, table, score=score)
    assert slots.shape[1] == 1
    level = merge_heads(plan.levels[:, :longest].int(), score)[0]
    chosen = torch.zeros(longest, dtype=torch.bool, device=device)
    chosen[positions[0, 0, :300].long()] = True
    # The kernel's exp2 and log2 may round a merged level to its neighbour.
    assert level[chosen].min() >= level[~chosen].max() - 2
    assert (positions[0, 0, :300].diff() > 0).all()


def test_without_scores_the_first_and_latest_positions(device):
    prefix_lens = [80, 90]
    plan = make_plan(prefix_lens, device, capacity=80)
    _, positions = check(plan, prefix_lens, [20, 20], device)
    assert plan.score_offsets.tolist()[:2] == [0, -1]
    assert positions[1, 0].tolist() == [*range(FIRST_POSITIONS), *range(86, 90)]


def test_what_does_not_fit_is_not_written(device):
    prefix_lens = [80, 40]
    plan = make_plan(prefix_lens, device)
    counts = torch.tensor([30, 10], dtype=torch.int32, device=device)
    table = make_table(prefix_lens, 5, 16, device)
    slots, _ = run(launch, plan, counts, table, tail=5, width=20)
    assert (slots[0] != POISON).all()
    assert (slots[1, :, 15:] == POISON).all()


def test_slots_past_the_block_table_are_zero(device):
    plan = make_plan([16], device)
    counts = torch.tensor([4], dtype=torch.int32, device=device)
    table = torch.tensor([[3]], dtype=torch.int32, device=device)
    slots, _ = run(launch, plan, counts, table, tail=3)
    assert (slots[0, :, 4:] == 0).all()


def test_more_than_one_chunk(device):
    prefix_lens = [20_000]
    plan = make_plan(prefix_lens, device, kv_heads=1, levels=40)
    check(plan, prefix_lens, [1500], device, tail=13)


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.data())
def test_any_shape(data):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prefix_lens = data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=5))
    counts = [data.draw(st.integers(0, n + 2)) for n in prefix_lens]
    levels = data.draw(st.sampled_from([1, 2, 50, LEVELS]))
    lookahead = data.draw(st.sampled_from([0.0, 0.6]))
    plan = make_plan(prefix_lens, device, levels=levels, lookahead=lookahead, seed=data.draw(st.integers(0, 99)))
    check(plan, prefix_lens, counts, device, tail=data.draw(st.integers(0, 3)))


def test_levels_of_nan_and_infinities():
    x = torch.tensor([torch.nan, -torch.inf, torch.inf, -51.0, 0.0])
    assert to_levels(x, "weight").tolist() == [0, 0, LEVELS - 1, 64, 52 * 64]


def test_public_function_runs_by_device(device):
    prefix_lens = [50, 20]
    plan = make_plan(prefix_lens, device)
    counts = torch.tensor([10, 5], dtype=torch.int32, device=device)
    table = make_table(prefix_lens, 3, 16, device)
    want, _ = run(reference, plan, counts, table, tail=3)
    slots = torch.full_like(want, POISON)
    select_kv(plan, counts, table, 16, slots=slots, score="weight", tail=3)
    assert torch.equal(slots, want)
    with pytest.raises(ValueError, match=r"slots must be of shape \[2, 2, any\]; got \[2, 1, 4\]"):
        select_kv(plan, counts, table, 16, slots=slots.new_zeros(2, 1, 4), score="weight")
    with pytest.raises(ValueError, match="score must be one of weight, logit; got 'none'"):
        select_kv(plan, counts, table, 16, slots=slots, score="none")
