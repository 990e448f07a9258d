"""What an iteration is expected to give: tokens per unit of time, by the number of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Times = Callable[[int], float]
"""From a number of drafts per request to the time of an iteration with them, in any unit."""


def expected_speeds(rates: Sequence[float], gammas: Sequence[int], times: Times, others: int = 0) -> dict[int, float]:
    """``(others + sum over requests (1 + r + r^2 + .. + r^gamma)) / times(gamma)`` for each of the `gammas`.

    Parameters
    ----------
    rates : sequence of float
        By request, the chance ``r`` that a draft is accepted, given the one before.
    gammas : sequence of int
        Numbers of drafts, ascending.
    times : callable
        What an iteration takes.
    others : int
        Requests that run along and use no drafts: one token each.

    """
    chances, committed = [1.0] * len(rates), float(len(rates) + others)
    found = {}
    for gamma in range(gammas[-1] + 1):
        if gamma:
            chances = [chance * rate for chance, rate in zip(chances, rates, strict=True)]
            committed += sum(chances)
        if gamma in gammas:
            found[gamma] = committed / times(gamma)
    return found


def cannot_gain(gammas: Iterable[int], times: Times, drafting: int, others: int = 0) -> bool:
    """Whether drafting is no faster than plain decoding even if every draft is accepted."""
    plain = (drafting + others) / times(0)
    return all((drafting * (gamma + 1) + others) / times(gamma) <= plain for gamma in gammas if gamma)
