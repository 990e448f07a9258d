"""In which steps and for which requests a scheduler asks for drafts; vLLM's own objects are stood in for."""

import random
from types import SimpleNamespace

import pytest

from vegas_spec.config import VegasConfig
from vegas_spec.pacing.costs import CostModel
from vegas_spec.vllm.scheduler import draft_scheduler
from vegas_spec.vllm.scheduler.draft_scheduler import DraftScheduler, wants_drafts
from vegas_spec.vllm.start import banner, options


def drafting(monkeypatch, fall_back, ranks=1, adaptive=False):
    """Decisions of an engine with three drafts, whose contexts cost as much as its weights from 100 tokens on."""
    monkeypatch.setattr(draft_scheduler, "estimate_cost", lambda config: CostModel(weights=100.0, per_token=1.0))
    monkeypatch.setattr(draft_scheduler, "budget_in_memory", options.vegas_config)
    monkeypatch.setattr(banner, "announce_pacing", lambda *args: None)
    config = VegasConfig(num_speculative_tokens=3, kv_budget=0.05, kv_budget_min=1, adaptive=adaptive).to_dict()
    lengths = {"draft_lengths": [0, 1, 2, 3] if adaptive else [0, 3]} if fall_back else {}
    ours = {"config": config, "fall_back": fall_back, **lengths}
    return DraftScheduler(
        SimpleNamespace(
            num_speculative_tokens=3,
            additional_config={"vegas": ours},
            speculative_config=None,
            parallel_config=SimpleNamespace(data_parallel_size=ranks),
            scheduler_config=SimpleNamespace(max_num_seqs=4),
        )
    )


def request(context, wants=True, prompt=1, drafts=()):
    extra = None if wants is True else {"vegas": wants}
    params = SimpleNamespace(extra_args=extra)
    return SimpleNamespace(
        num_computed_tokens=context, num_prompt_tokens=prompt, sampling_params=params, spec_token_ids=list(drafts)
    )


def decide(rule, *requests, length=3, finished=()):
    """How many drafts follow a step of these requests, where vLLM alone would have `length`."""
    scheduler = SimpleNamespace(requests=dict(enumerate(requests)))
    output = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(scheduler.requests, 1),
        num_spec_tokens_to_schedule=length,
        finished_req_ids=finished,
    )
    rule.decide(scheduler, output)
    return output.num_spec_tokens_to_schedule


@pytest.mark.parametrize(
    ("said", "wants"), [(True, True), (False, False), (0, False), (1, True), ("false", False), ("true", True)]
)
def test_what_a_request_may_say(said, wants):
    """JSON's own words, as Python or as the server hands them on."""
    assert wants_drafts(SimpleNamespace(extra_args={"vegas": said})) is wants
    assert wants_drafts(SimpleNamespace(extra_args={"other": said}))
    assert wants_drafts(SimpleNamespace(extra_args=None))


@pytest.mark.parametrize("said", ["no", 2, 0.5, None, [False], {}])
def test_anything_else_is_refused(said):
    """By one sentence."""
    with pytest.raises(ValueError, match=r"'vegas' in extra_args .* must be true or false; got"):
        wants_drafts(SimpleNamespace(extra_args={"vegas": said}))


def test_drafts_of_those_who_want_none_are_dropped(monkeypatch):
    """Before they are scheduled."""
    one, other = request(9, drafts=[1, 2, 3]), request(9, wants=False, drafts=[1, 2, 3])
    drafting(monkeypatch, fall_back=False).drop_drafts([one, other])
    assert one.spec_token_ids == [1, 2, 3]
    assert other.spec_token_ids == []


@pytest.mark.parametrize("fall_back", [False, True])
def test_nobody_wants_drafts(monkeypatch, fall_back):
    """Then none are made, and the rule learns nothing from it."""
    rule = drafting(monkeypatch, fall_back)
    assert decide(rule, request(1000, wants=False), request(900, wants=False)) == 0
    assert decide(rule, request(1000, wants=False), request(900)) == 3
    assert rule.take_counts() == {
        "request_steps_drafting": 1,
        "request_steps_plain": 3,
        "changes_to_plain": 1,
        "changes_to_drafting": 1,
        "drafting": 1,
        "num_speculative_tokens": 3,
    }
    assert rule.take_counts() == {"drafting": 1, "num_speculative_tokens": 3}


def test_ranks_draft_alike(monkeypatch):
    """Under data parallelism every rank drafts, whoever wants it."""
    assert decide(drafting(monkeypatch, fall_back=False, ranks=2), request(1000, wants=False)) == 3


def test_steps_of_prompts_only(monkeypatch):
    """They are counted for nobody and change nothing."""
    rule = drafting(monkeypatch, fall_back=True)
    assert decide(rule, request(5, prompt=100)) == 3
    assert rule.take_counts() == {"drafting": 1, "num_speculative_tokens": 3}


def test_those_who_want_none_weigh_on_the_gain(monkeypatch):
    """They pay for the draft and gain nothing by it."""
    everyone = [request(300) for _ in range(8)]
    one = [request(300)] + [request(300, wants=False) for _ in range(7)]
    assert decide(drafting(monkeypatch, fall_back=True), *everyone) == 3
    assert decide(drafting(monkeypatch, fall_back=True), *one) == 0


def test_a_schedule_of_the_users(monkeypatch):
    """Stays in force, and is counted."""
    rule = drafting(monkeypatch, fall_back=False)
    assert decide(rule, request(300), request(300), length=1) == 1
    assert decide(rule, request(300), length=0) == 0
    assert rule.take_counts()["changes_to_plain"] == 1


def test_online_mode(monkeypatch):
    """Fewer drafts as fewer are accepted, and the metrics say how many."""
    rule = drafting(monkeypatch, fall_back=True, adaptive=True)
    monkeypatch.setattr(draft_scheduler, "clock", lambda: 0.0)
    chosen = []
    luck = random.Random(0)
    for rate in (1.0, 0.5, 0.0):
        for _ in range(60):
            length = decide(rule, request(400))
            if length:
                rule.observe(0, length, next((i for i in range(length) if luck.random() >= rate), length))
        chosen.append(length)
        assert rule.take_counts()["num_speculative_tokens"] == length
    assert chosen == [3, chosen[1], 0]
    assert 0 < chosen[1] < 3
    assert decide(rule, request(2000, wants=False)) == 0


@pytest.mark.parametrize("wants", [True, False])
def test_online_mode_forgets(monkeypatch, wants):
    """Requests that have ended, also where their last drafts were judged since, and nobody drafts any more."""
    rule = drafting(monkeypatch, fall_back=True, adaptive=True)
    decide(rule, request(400), request(400))
    for each in (0, 1):
        rule.observe(each, 3, 2)
    decide(rule, request(400, wants=wants), finished=(1,))
    decide(rule, request(400))
    assert list(rule.pacer.requests) == [0]
