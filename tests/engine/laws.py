"""Laws of tokens: by the definition of each sampling option in turn, and compared by chi-square."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from vegas_spec import SamplingParams

FALSE_ALARM = 1e-5
STOPS, BAD_WORDS = [0, 2], [[1], [3, 4], [2, 2, 1]]


def naive_penalised(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], said: Sequence[int]
) -> list[float]:
    result = []
    for token, logit in enumerate(logits):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            logit = -math.inf
        logit += (params.logit_bias or {}).get(token, 0.0)
        if token in STOPS and len(said) < params.min_tokens:
            logit = -math.inf
        if token in prompt or token in said:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        times = list(said).count(token)
        logit -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
        now = [*said, token]
        if params.bad_words and any(now[-len(word) :] == word for word in BAD_WORDS):
            logit = -math.inf
        result.append(logit)
    return result


def naive_law(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], said: Sequence[int]
) -> list[float]:
    """What the next token is drawn from, by the definition of each option in turn (no two logits are equal)."""
    scaled = [logit / params.temperature for logit in naive_penalised(logits, params, prompt, said)]
    best = max(scaled)
    assert best > -math.inf
    weights = [math.exp(value - best) for value in scaled]
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    ranked = sorted(range(len(weights)), key=lambda token: scaled[token], reverse=True)
    kept = set(ranked[: params.top_k] if params.top_k > 0 else ranked)
    weights = [weight if token in kept else 0.0 for token, weight in enumerate(weights)]
    total, reached = sum(weights), 0.0
    for token in ranked:
        if reached >= params.top_p * total and params.top_p < 1:
            weights[token] = 0.0
        reached += weights[token]
    return [weight / sum(weights) for weight in weights]


Law = dict[tuple[int, ...], float]


def exact_law(
    length: int, next_logits: Callable[[tuple[int, ...]], Sequence[float]], params: SamplingParams, prompt: list[int]
) -> Law:
    """The joint law of the first `length` tokens."""
    law: Law = {(): 1.0}
    for _ in range(length):
        longer: Law = {}
        for said, probability in law.items():
            for token, p in enumerate(naive_law(next_logits(said), params, prompt, said)):
                if p > 0:
                    longer[*said, token] = probability * p
        law = longer
    return law


def chi_square(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """The probability that a sample of this law is at least as far from it; rare sequences are counted together."""
    total = sum(counts.values())
    cells: list[tuple[float, float]] = []
    rest_expected = rest_seen = 0.0
    for sequence, probability in law.items():
        expected, seen = probability * total, counts[sequence]
        if expected < 5:
            rest_expected, rest_seen = rest_expected + expected, rest_seen + seen
        else:
            cells.append((expected, seen))
    if rest_expected >= 5:
        cells.append((rest_expected, rest_seen))
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    if len(cells) < 2:
        return 1.0
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def assert_law(counts: Counter[tuple[int, ...]], law: Law) -> None:
    impossible = {sequence for sequence in counts if law.get(sequence, 0.0) < 1e-9}
    assert not impossible, f"sequences of probability zero were drawn: {impossible}"
    assert chi_square(counts, law) > FALSE_ALARM
