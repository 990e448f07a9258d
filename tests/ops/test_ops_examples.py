"""The examples in the ops' documentation run, and show what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("op", ["verify_attention", "select_kv", "sparse_attention"])
def test_the_examples_of_an_op(op):
    failed, found = doctest.testmod(importlib.import_module(f"vegas_spec.ops.{op}"))
    assert found > 0
    assert failed == 0
