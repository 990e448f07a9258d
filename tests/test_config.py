"""Every option is checked once, by name, and the budget is the integer that all backends compute."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vegas_spec.config import MAX_SPECULATIVE_TOKENS, POLICIES, ConfigError, VegasConfig
from vegas_spec.policies import policy_class

LENGTHS = st.integers(0, 2_000_000)
SHARES = st.one_of(st.floats(1e-6, 1.0), st.integers(1, 1_000_000).map(lambda millionths: millionths / 1_000_000))


@st.composite
def configs(draw: st.DrawFn) -> VegasConfig:
    low = draw(st.integers(1, 5_000))
    high = draw(st.none() | st.integers(low, 10_000))
    return VegasConfig(kv_budget=draw(SHARES), kv_budget_min=low, kv_budget_max=high)


def test_defaults_are_those_of_the_documentation():
    assert VegasConfig().to_dict() == {
        "num_speculative_tokens": 6,
        "policy": "vegas",
        "kv_budget": 0.05,
        "kv_budget_min": 256,
        "kv_budget_max": None,
        "score": "weight",
        "rows": "ends",
        "granularity": "kv_head",
        "lookahead": 0.0,
        "adaptive": False,
    }


@settings(deadline=None)
@given(config=configs(), length=LENGTHS)
def test_budget_is_exact(config: VegasConfig, length: int):
    share = Fraction(round(Fraction(config.kv_budget) * 1_000_000), 1_000_000)
    wanted = max(ceil(share * length), config.kv_budget_min)
    if config.kv_budget_max is not None:
        wanted = min(wanted, config.kv_budget_max)
    assert config.budget(length) == min(wanted, length)


@settings(deadline=None)
@given(config=configs(), lengths=st.lists(LENGTHS, max_size=8))
def test_budget_of_many_is_the_budget_of_each(config: VegasConfig, lengths: list[int]):
    expected = [config.budget(length) for length in lengths]
    for dtype in (torch.int32, torch.int64):
        found = config.budget(torch.tensor(lengths, dtype=dtype))
        assert (found.dtype, found.tolist()) == (torch.int64, expected)
        array = config.budget(np.array(lengths, dtype=str(dtype).removeprefix("torch.")))
        assert (array.dtype, array.tolist()) == (np.int64, expected)


@settings(deadline=None)
@given(config=configs(), length=LENGTHS, factor=st.floats(0.1, 1.0))
def test_a_share_of_the_budget_is_that_of_a_smaller_one(config: VegasConfig, length: int, factor: float):
    share = max(config.kv_budget * factor, 1e-6)
    assert config.budget(length, factor) == dataclasses.replace(config, kv_budget=share).budget(length)


def test_policies_of_other_packages_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_policy.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"cannot be imported from broken_policy:Own: ZeroDivisionError"):
        policy_class("broken_policy:Own")
    assert VegasConfig(policy="somewhere:Own").policy == "somewhere:Own"
    with pytest.raises(ConfigError, match="cannot be imported"):
        policy_class("somewhere:Own")
    with pytest.raises(ConfigError, match="must be a subclass"):
        policy_class("vegas_spec.config:VegasConfig")
    assert {name: policy_class(name).name for name in POLICIES} == {name: name for name in POLICIES}


def test_budget_of_a_decimal_share_does_not_gain_an_entry_by_rounding():
    # 0.07 is slightly above 7/100 as a float: a plain ceil(0.07 * 100_000) is 7_001.
    assert ceil(0.07 * 100_000) == 7_001
    assert VegasConfig(kv_budget=0.07, kv_budget_min=1).budget(100_000) == 7_000


@pytest.mark.parametrize("share", [1e-6, 1, 1.0, 0.5])
def test_the_ends_of_the_range_are_allowed(share: float):
    config = VegasConfig(kv_budget=share, kv_budget_min=1)
    assert [config.budget(length) for length in (0, 1, 1_000_000)] == [0, 1, ceil(Fraction(share) * 1_000_000)]


BAD_VALUES: list[tuple[str, Any]] = [
    *[("num_speculative_tokens", bad) for bad in (0, -1, MAX_SPECULATIVE_TOKENS + 1, True, 2.0, "6", None)],
    *[("policy", bad) for bad in ("vega", "", None, 3, ["vegas"])],
    *[("kv_budget", bad) for bad in (0, 0.0, -0.1, 1e-9, 1.000001, 2, True, "0.05", None, float("nan"), float("inf"))],
    *[("kv_budget_min", bad) for bad in (0, -1, True, 1.5, "256", None)],
    *[("kv_budget_max", bad) for bad in (0, 255, True, 1e6, "none")],
    *[("score", bad) for bad in ("weights", "", None, 1)],
    *[("rows", bad) for bad in ("end", "first", None, 2)],
    *[("granularity", bad) for bad in ("head", "layers", None, 0)],
]


@pytest.mark.parametrize(("option", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed_and_what_came(option: str, value: Any):
    with pytest.raises(ConfigError) as refusal:
        VegasConfig(**{option: value})
    message = str(refusal.value)
    assert message.startswith(f"{option} must be ")
    allowed, separator, got = message.partition("; got ")
    assert separator
    assert len(allowed) > len(f"{option} must be ")
    assert str(value) in got


@pytest.mark.parametrize(
    ("option", "near"),
    [("kv_buget", "kv_budget"), ("num_speculative_token", "num_speculative_tokens"), ("row", "rows")],
)
def test_an_unknown_option_is_refused_and_the_nearest_is_named(option: str, near: str):
    with pytest.raises(ConfigError, match=f"{option!r}.*did you mean '?{near}'?"):
        VegasConfig.from_dict({option: 1})


def test_an_option_like_no_other_is_refused_with_all_known_ones():
    with pytest.raises(ConfigError) as refusal:
        VegasConfig.from_dict({"xyzzy": 1})
    assert "did you mean" not in str(refusal.value)
    assert all(field.name in str(refusal.value) for field in dataclasses.fields(VegasConfig))


@settings(deadline=None)
@given(config=configs(), policy=st.sampled_from(sorted(POLICIES)), score=st.sampled_from(["weight", "logit"]))
def test_to_dict_and_from_dict_are_inverse(config: VegasConfig, policy: str, score: Any):
    config = dataclasses.replace(config, policy=policy, score=score)
    assert VegasConfig.from_dict(config.to_dict()) == config
    assert hash(VegasConfig.from_dict(config.to_dict())) == hash(config)


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        VegasConfig().kv_budget = 0.1  # type: ignore[misc]


def test_a_config_error_is_a_value_error():
    assert issubclass(ConfigError, ValueError)
