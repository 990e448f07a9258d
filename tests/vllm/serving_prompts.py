"""What several modules ask of the engines."""

import random

VEGAS = {"method": "vegas", "num_speculative_tokens": 3, "kv_budget": 0.3, "kv_budget_min": 24, "fall_back": False}
"""Small enough to leave most of a test's context out, so that drafts are wrong now and then."""


def prompts(*lengths, seed=0):
    """Random bytes, as token ids."""
    numbers = random.Random(seed)
    return [[numbers.randrange(256) for _ in range(length)] for length in lengths]
