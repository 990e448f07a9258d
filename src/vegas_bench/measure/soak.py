"""A while of serving: requests of mixed lengths at random times, some aborted, judged against stock vLLM."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vegas_bench.measure.progress import Watch, unwatched
from vegas_bench.measure.vllm_side import side_process

LOGPROBS = 20
"""Of the likeliest tokens, which stock is asked for where answers differ: the most that
vLLM gives unless told otherwise."""

ABORTED = 0.1
"""Share of the requests that are aborted while they run. Chosen by hand."""


@dataclass(frozen=True)
class Request:
    """A request of a soak.

    Attributes
    ----------
    at : float
        Seconds after the begin.
    prompt : list of int
        Token ids.
    max_tokens : int
        Of the answer, which goes on past an end token.
    aborted_after : int, optional
        Tokens after which it is aborted.

    """

    at: float
    prompt: list[int]
    max_tokens: int
    aborted_after: int | None


def make_requests(
    texts: Sequence[Sequence[int]], *, seconds: float, rate: float, shortest: int, max_tokens: int, seed: int = 0
) -> list[Request]:
    """Draw requests: a Poisson process, pieces of texts whose lengths spread evenly over their orders of magnitude.

    Parameters
    ----------
    texts : sequence
        Token ids of texts of one length, which is that of the longest prompts.
    seconds, rate : float
        How long requests come, and how many a second.
    shortest : int
        Fewest tokens of a prompt.
    max_tokens : int
        Most tokens of an answer.
    seed : int
        Which ones.

    """
    numbers, found = random.Random(seed), list[Request]()
    now = numbers.expovariate(rate)
    while now < seconds or not found:
        text = numbers.choice(texts)
        length = int(shortest * (len(text) / shortest) ** numbers.random())
        start = numbers.randrange(len(text) - length + 1)
        tokens = numbers.randrange(min(8, max_tokens), max_tokens + 1)
        aborted = numbers.randrange(1, tokens) if tokens > 1 and numbers.random() < ABORTED else None
        found.append(Request(now, list(text[start : start + length]), tokens, aborted))
        now += numbers.expovariate(rate)
    return found


def soak(
    engine: Mapping[str, Any],
    speculative_config: Mapping[str, Any] | None,
    requests: Sequence[Request],
    log: Path,
    watch: Watch = unwatched,
) -> dict[str, Any]:
    """Serve requests with drafts, then have stock vLLM answer those that finished.

    Where a request's tokens first differ, stock is asked for both tokens' log-probabilities after the common part: a
    gap beyond rounding is a fault, a smaller one is a tie, which another batch size can break too. How often, stock
    shows against itself.

    Parameters
    ----------
    engine : mapping
        Arguments of `vllm.LLM` for both.
    speculative_config : mapping or None
        What drafts.
    requests : sequence of Request
        What comes.
    log : Path
        Takes what vLLM logs; kept if it fails.
    watch : callable, optional
        See `vegas_bench.measure.progress.Watch`; the parts are requests.

    Returns
    -------
    dict
        ``served`` and ``judged``: what `soak_engine.serve` and `soak_engine.judge` tell; in the latter ``ties`` and
        ``faults``, the gaps apart.

    Raises
    ------
    ResultError
        If an engine fails.

    """
    shared = {**engine, "max_logprobs": LOGPROBS}

    def told(name: str, speculative: Mapping[str, Any] | None, task: Mapping[str, Any]) -> dict[str, Any]:
        measured: dict[str, Any] = {}
        watch(f"{name}: starting vLLM", 0, len(requests))
        with side_process(name, {**shared, "speculative_config": speculative}, [{**task, "key": name}], log) as process:
            process.begin()
            for line in process.lines():
                watch(name, line.get("served", 0), len(requests))
                measured = line.get("measured", measured)
        return measured

    served = told("serving", speculative_config, {"measure": "serve", "requests": [*map(dataclasses.asdict, requests)]})
    answers = served.pop("answers")
    judged = told("stock", None, {"measure": "judge", "answers": answers})
    gaps, tie = judged.pop("gaps"), judged["tie"]
    judged |= {"ties": [gap for gap in gaps if gap <= tie], "faults": [gap for gap in gaps if gap > tie]}
    return {"served": served, "judged": judged}


def failure(result: Mapping[str, Any]) -> str | None:
    """Say in a sentence why a soak has failed; None if it has not."""
    served, judged = result["served"], result["judged"]
    if not served["finished"]:
        return "no request finished, so that nothing was judged; soak for longer"
    if not served["drafts"]:
        return (
            "nothing was drafted, so that the soak says nothing about drafting: if drafting may be suspended "
            "(fall_back), forbid it; take longer prompts or more requests"
        )
    if faults := judged["faults"]:
        return f"{len(faults)} of {judged['requests']} requests differ from stock vLLM by more than a tie"
    return None
