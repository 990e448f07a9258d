"""What each policy answers, and that every name of the configuration has a policy."""

from __future__ import annotations

import itertools

import pytest
import torch
from policy_cases import dense, drafting, verified

from vegas_spec.config import POLICIES, VegasConfig
from vegas_spec.policies import Queries, ScoreRequest, make_policy
from vegas_spec.selection import NO_POSITION

KEYS = dense(torch.zeros(8, 1, 1024, 4), 8)


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_makes_the_policy_of_that_name(name: str):
    config = VegasConfig(policy=name)
    policy = make_policy(config)
    assert policy.name == name
    assert policy.config is config
    assert policy.speculates == (name != "full")


@pytest.mark.parametrize("name", ["dense", "full"])
def test_a_policy_that_leaves_nothing_out_wants_no_scores(name: str):
    policy = make_policy(VegasConfig(policy=name))
    assert policy.score_request is None
    assert not policy.selects
    assert policy.select(verified([KEYS], policy, [3, 900])) is None
    assert policy.num_entries(900, 45) == 900


@pytest.mark.parametrize(
    ("rows", "score", "granularity"),
    list(itertools.product(["ends", "all", "last"], ["weight", "logit"], ["kv_head", "layer"])),
)
def test_vegas_wants_the_scores_of_its_configuration(rows, score, granularity):
    policy = make_policy(VegasConfig(rows=rows, score=score, granularity=granularity))
    assert policy.score_request == ScoreRequest(rows=rows, score=score, granularity=granularity, lookahead=0.0)


def test_vegas_selects_the_best_within_each_requests_own_budget():
    policy = make_policy(VegasConfig(kv_budget=0.25, kv_budget_min=2, kv_budget_max=5))
    prefix_lens = [0, 1, 7, 16, 40]
    scores = torch.rand(3, 5, 2, 40, generator=torch.Generator().manual_seed(0))
    positions = policy.select(verified([KEYS] * 3, policy, prefix_lens, scores=scores))
    assert positions.shape == (3, 5, 2, 5)
    assert (positions != NO_POSITION).sum(-1).unique(dim=0).tolist() == [[[0, 0], [1, 1], [2, 2], [4, 4], [5, 5]]]
    for layer, request, group in itertools.product(range(3), range(5), range(2)):
        chosen = [position for position in positions[layer, request, group].tolist() if position != NO_POSITION]
        row = scores[layer, request, group, : prefix_lens[request]]
        assert chosen == sorted(row.argsort(descending=True)[: len(chosen)].tolist())


def test_vegas_selects_everything_when_the_budget_is_larger_than_the_context():
    policy = make_policy(VegasConfig())
    positions = policy.select(verified([KEYS], policy, [9], scores=torch.zeros(1, 1, 1, 9)))
    assert positions.tolist() == [[[list(range(9))]]]


def test_vegas_without_scores_is_a_fault_of_the_caller():
    policy = make_policy(VegasConfig())
    with pytest.raises(TypeError, match="collected none"):
        policy.select(verified([KEYS], policy, [4]))


@pytest.mark.parametrize("name", ["vegas", "stream", "specextend"])
def test_a_policy_that_selects_once_has_no_answer_for_a_step(name):
    policy = make_policy(VegasConfig(policy=name))
    with pytest.raises(TypeError, match="once per iteration"):
        policy.select_step(0, drafting(KEYS, policy, Queries(torch.zeros(1, 1, 4), 1.0, None), [3]))


# --- stream ---------------------------------------------------------------------------------------------------------


def test_stream_reads_the_first_16_and_the_latest_up_to_the_budget():
    policy = make_policy(VegasConfig(policy="stream", kv_budget=0.5, kv_budget_min=20, kv_budget_max=22))
    positions = policy.select(verified([KEYS] * 2, policy, [40, 12, 500]))
    assert positions.shape == (1, 3, 1, 22)
    assert positions[0, 0, 0].tolist() == [*range(16), 36, 37, 38, 39, NO_POSITION, NO_POSITION]
    assert positions[0, 1, 0].tolist() == [*range(12), *[NO_POSITION] * 10]
    assert positions[0, 2, 0].tolist() == [*range(16), *range(494, 500)]


def test_stream_with_less_than_16_entries_reads_the_first_ones():
    policy = make_policy(VegasConfig(policy="stream", kv_budget=0.01, kv_budget_min=5))
    assert policy.select(verified([KEYS], policy, [400])).tolist() == [[[[0, 1, 2, 3, 4]]]]
