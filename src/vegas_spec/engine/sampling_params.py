"""What a request asks for, in vLLM's terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vegas_spec.config import check_int, invalid

GREEDY_TEMPERATURE = 1e-5
"""Below this a temperature means greedy, as in vLLM."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop; names, meanings and order of application are vLLM's.

    Order: repetition, frequency and presence penalty; temperature; min-p; top-k; top-p.

    Parameters
    ----------
    temperature : float
        0 is greedy.
    top_k : int
        Keep the k most likely tokens; 0 or -1 keeps all.
    top_p : float
        Keep the smallest set of likely tokens whose probability reaches this, in (0, 1].
    min_p : float
        Drop tokens less likely than this share of the likeliest, in [0, 1].
    repetition_penalty : float
        Above 1 discourages tokens of prompt and output (arXiv 1909.05858), in (0, 10].
    presence_penalty, frequency_penalty : float
        Subtracted from the logits of tokens in the output, once or once per occurrence, in [-2, 2].
    seed : int, optional
        Makes the request reproducible; without it the engine's own seed counts on.
    max_tokens : int or None
        Most tokens to generate; None is up to the context limit.
    stop : str or sequence of str
        Strings that end the output; they are not part of the text.
    stop_token_ids : sequence of int
        Tokens that end the output.
    ignore_eos : bool
        Go on after the end-of-sequence token.

    Raises
    ------
    ConfigError
        If a value is not allowed.

    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: str | Sequence[str] = field(default_factory=tuple)
    stop_token_ids: Sequence[int] = field(default_factory=tuple)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_float("temperature", self.temperature, "at least 0", 0 <= self.temperature < math.inf)
        check_int("top_k", self.top_k, -1)
        _check_float("top_p", self.top_p, "above 0 and at most 1", 0 < self.top_p <= 1)
        _check_float("min_p", self.min_p, "from 0 to 1", 0 <= self.min_p <= 1)
        penalty = self.repetition_penalty
        _check_float("repetition_penalty", penalty, "above 0 and at most 10", 0 < penalty <= 10)
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check_float(name, value, "from -2 to 2", -2 <= value <= 2)
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**63 - 1)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1)
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stops):
            raise invalid("stop", "strings that are not empty", self.stop)
        object.__setattr__(self, "stop", stops)
        if not all(isinstance(token, int) and token >= 0 for token in self.stop_token_ids):
            raise invalid("stop_token_ids", "token ids of at least 0", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Whether the distribution depends on what was said before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _check_float(option: str, value: object, allowed: str, holds: bool) -> None:
    # A NaN compares false with everything, so it never holds.
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds:
        raise invalid(option, f"a number {allowed}", value)
