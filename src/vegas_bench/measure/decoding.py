"""What decoding did: the figures of one setting on one batch of prompts, whichever engine measured them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Decoding:
    """Figures of the iterations in which all requests decode, the first ones left out.

    Attributes
    ----------
    tokens_per_second : list of float
        Of the whole batch, one per run.
    accepted_per_iteration : float, optional
        Drafts accepted, per request; None where nothing was drafted.
    accepted_per_position : list of float, optional
        Chance that the drafts at distance 1, 2, ... (and all before) were accepted, over whole outputs.
    milliseconds : dict, optional
        Per iteration, where the engine tells: ``draft`` (all steps), ``verify`` and what else there is.
    selection_milliseconds : float, optional
        The part of them that was scoring and choosing.
    draft_kv_share : float, optional
        Share of the cache that drafts read.

    """

    tokens_per_second: list[float]
    accepted_per_iteration: float | None = None
    accepted_per_position: list[float] | None = None
    milliseconds: dict[str, float] | None = None
    selection_milliseconds: float | None = None
    draft_kv_share: float | None = None

    @property
    def speed(self) -> float:
        """Median of the runs."""
        return statistics.median(self.tokens_per_second)


def together(runs: Sequence[Decoding]) -> Decoding:
    """Take several runs of one setting as one: means of acceptance, medians of times."""

    def over(take: Callable[[Decoding], Value | None], mean: Callable[[list[Value]], Value]) -> Value | None:
        known = [value for value in map(take, runs) if value is not None]
        return mean(known) if known else None

    def by_place(values: list[list[float]]) -> list[float]:
        return [statistics.mean(each) for each in zip(*values, strict=True)]

    def by_phase(values: list[dict[str, float]]) -> dict[str, float]:
        return {phase: statistics.median(each[phase] for each in values) for phase in values[0]}

    return Decoding(
        tokens_per_second=[speed for run in runs for speed in run.tokens_per_second],
        accepted_per_iteration=over(lambda run: run.accepted_per_iteration, statistics.mean),
        accepted_per_position=over(lambda run: run.accepted_per_position, by_place),
        milliseconds=over(lambda run: run.milliseconds, by_phase),
        selection_milliseconds=over(lambda run: run.selection_milliseconds, statistics.median),
        draft_kv_share=over(lambda run: run.draft_kv_share, statistics.mean),
    )


def steady_speed(marks: Sequence[tuple[float, int]]) -> float:
    """Tokens per second between the first and the last mark, each a moment in seconds and the tokens there were."""
    (begin, before), (end, after) = marks[0], marks[-1]
    return (after - before) / (end - begin)
