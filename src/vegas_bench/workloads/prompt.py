"""What a workload is asked for and what it gives."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vegas_spec.config import ConfigError, check_int
from vegas_spec.engine.prompts import TokensPrompt


@dataclass(frozen=True)
class WorkloadPrompt:
    """A prompt of a workload.

    Attributes
    ----------
    name, kind : str
        Unique within the workload; what sort of text it is.
    prompt : TokensPrompt
        By the model's chat template, if it has one.
    expected : tuple of str
        Regular expressions of the answers that a right completion contains; empty where they are not known.
    cut : int
        Tokens of its text that were left out, from the middle.

    """

    name: str
    kind: str
    prompt: TokensPrompt
    expected: tuple[str, ...] = ()
    cut: int = 0

    def correct(self, completion: str) -> float | None:
        """Share of the expected answers that a completion contains; None where they are not known."""
        if not self.expected:
            return None
        return sum(re.search(answer, completion) is not None for answer in self.expected) / len(self.expected)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which prompts of a workload are wanted; the parameters that all workloads have.

    Parameters
    ----------
    prompts : int
        How many; a workload that has fewer gives what it has.
    min_tokens, max_tokens : int
        Lengths, in the model's tokens, chat template included. Generated prompts are spread evenly from one to the
        other. Of stored ones, those that are shorter are left out and those that are longer lose their middle, since
        instructions stand at the start or the end.
    seed : int
        Which generated texts, or which of the stored ones, in which order.

    Raises
    ------
    ConfigError
        If a value is not allowed.

    """

    prompts: int = 8
    min_tokens: int = 1
    max_tokens: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("prompts", self.prompts, 1)
        check_int("min_tokens", self.min_tokens, 1)
        check_int("max_tokens", self.max_tokens, 1)
        check_int("seed", self.seed, 0)
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens must be at most max_tokens; got {self.min_tokens} and {self.max_tokens} "
                "(which is at most what the model's context leaves beside the output)"
            )

    def lengths(self) -> list[int]:
        """One length per prompt, spread evenly over the wanted range."""
        span, gaps = self.max_tokens - self.min_tokens, max(1, self.prompts - 1)
        return [self.min_tokens + span * number // gaps for number in range(self.prompts)]
