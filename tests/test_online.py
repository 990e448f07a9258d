"""Online mode's decisions on simulated engines: close to the best fixed number of drafts, ahead where texts change."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from vegas_spec.config import VegasConfig
from vegas_spec.pacing.fall_back import Cost
from vegas_spec.pacing.online import Online

LENGTHS = [0, 2, 4, 6]
COST = Cost(weights=15.1e9, per_token=36 * 8 * 128 * 2 * 2, layers=36)
"""An 8B model's."""

Text = Callable[[int], float]
"""Chance that a draft is accepted (given the one before) at a place of an output."""


@dataclass(frozen=True)
class Engine:
    """Its requests, and how many times as long its steps take as the cost model says, plain ones and others."""

    context: int
    texts: Sequence[Text]
    plain: float = 1.0
    draft: float = 1.0
    delay: int = 0
    """Steps until the scheduler sees results: 1 if it schedules ahead."""

    def seconds(self, length: int) -> float:
        config = VegasConfig()
        tokens, read = self.context * len(self.texts), config.budget(self.context) * len(self.texts)
        if length == 0:
            return COST.plain(tokens) * self.plain / 4e12
        steps = COST.verify(tokens, length * len(self.texts)) + length * COST.draft(read) * self.draft
        return steps / 4e12

    def speed(self, steps: int, decide: Callable[[float], int], observe: Callable[[int, int, int], None]) -> float:
        """Tokens per second of so many steps."""
        luck, noise = random.Random(1), random.Random(2)
        places = [0] * len(self.texts)
        now, drafted, scored = 0.0, 0, True
        late: list[list[tuple[int, int, int]]] = []
        for _ in range(steps):
            results = []
            for request, text in enumerate(self.texts):
                # What follows a plain step is drafted by a window.
                rate = text(places[request]) * (1.0 if scored else 0.5)
                accepted = 0
                while accepted < drafted and luck.random() < rate:
                    accepted += 1
                places[request] += accepted + 1
                if drafted:
                    results.append((request, drafted, accepted))
            late.append(results)
            if len(late) > self.delay:
                for result in late.pop(0):
                    observe(*result)
            # A step verifies what the one before drafted, and drafts anew.
            scored = drafted > 0
            drafted = decide(now)
            now += self.seconds(drafted) * (1 + 0.05 * noise.uniform(-1, 1))
        return sum(places) / now

    def fixed(self, length: int, steps: int) -> float:
        return self.speed(steps, lambda now: length, lambda *result: None)

    def online(self, steps: int) -> tuple[float, Online]:
        rule = Online(VegasConfig(), COST, LENGTHS)
        requests = range(len(self.texts))
        contexts = [self.context] * len(self.texts)
        return self.speed(steps, lambda now: rule.decide(contexts, requests, False, now), rule.observe), rule


def steady(*rates: float) -> list[Text]:
    return [lambda place, rate=rate: rate for rate in rates]


def turning(place: int) -> float:
    """A text that quotes and thinks in turn."""
    return 0.98 if place // 400 % 2 == 0 else 0.2


ENGINES = {
    "long context": Engine(32_768, steady(*[0.93] * 16)),
    "one request": Engine(130_000, steady(0.85)),
    "mixed acceptance": Engine(32_768, steady(0.97, 0.9, 0.7, 0.3)),
    "nothing accepted": Engine(32_768, steady(*[0.1] * 8)),
    "short context": Engine(1000, steady(*[0.9] * 8)),
    "at the border": Engine(8192, steady(*[0.85] * 8)),
    "drafts cost more than thought": Engine(16_384, steady(*[0.8] * 16), draft=1.6),
    "drafts cost less than thought": Engine(6000, steady(*[0.9] * 16), draft=0.7),
    "plain steps cost more than thought": Engine(6000, steady(*[0.9] * 8), plain=1.4),
    "scheduled ahead": Engine(32_768, steady(*[0.8] * 8), delay=1),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_never_far_behind_the_best_fixed_number(engine: str) -> None:
    """Within 3 %, start included."""
    best = max(ENGINES[engine].fixed(length, 3000) for length in LENGTHS)
    assert ENGINES[engine].online(3000)[0] >= 0.97 * best


@pytest.mark.parametrize("delay", [0, 1])
def test_ahead_where_texts_change(delay: int) -> None:
    engine = Engine(130_000, [turning], delay=delay)
    best = max(engine.fixed(length, 6000) for length in LENGTHS)
    assert engine.online(6000)[0] >= 1.07 * best
