"""What a request asks for, in vLLM's terms."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vegas_spec.config import ConfigError, check_int, invalid, reject_unknown

GREEDY_TEMPERATURE = 1e-5
"""Below this a temperature means greedy, as in vLLM."""

_TOKENS_ONLY = "this engine gives tokens and text, no probabilities; run the prompt in vLLM for them"
_TEXT_IS_FIXED = "text is always decoded without special tokens; decode the outputs' token_ids yourself for another"
_FOR_SERVERS = "it steers vLLM's own machinery, which this engine does not have; leave it out"
NOT_HERE: dict[str, tuple[Any, str]] = {
    "n": (1, "give the prompt n times"),
    "logprobs": (None, _TOKENS_ONLY),
    "prompt_logprobs": (None, _TOKENS_ONLY),
    "prompt_logprob_token_ids": (None, _TOKENS_ONLY),
    "prompt_logprob_start": (None, _TOKENS_ONLY),
    "logprob_token_ids": (None, _TOKENS_ONLY),
    "flat_logprobs": (False, _TOKENS_ONLY),
    "detokenize": (True, "text is always decoded; load the model without a tokenizer to have tokens only"),
    "skip_special_tokens": (True, _TEXT_IS_FIXED),
    "spaces_between_special_tokens": (True, _TEXT_IS_FIXED),
    "include_stop_str_in_output": (False, "add the output's stop_reason to its text"),
    "output_kind": (None, "generate gives finished outputs, stream the whole output so far; leave it out"),
    "stream_interval": (None, "stream yields every iteration; leave it out"),
    "structured_outputs": (None, "run the prompt in vLLM, with or without vegas"),
    "thinking_token_budget": (None, "run the prompt in vLLM, with or without vegas"),
    "repetition_detection": (None, "close the stream when the output repeats itself"),
    "extra_args": (None, "policy='full' of with_config decodes without drafts"),
    "watermarking": (None, _FOR_SERVERS),
    "skip_clone": (False, _FOR_SERVERS),
    "skip_reading_prefix_cache": (None, _FOR_SERVERS),
    "routed_experts_prompt_start": (0, _FOR_SERVERS),
    "trace_decode_token_ids": (None, _FOR_SERVERS),
}
"""Options of vLLM's SamplingParams that the engine lacks: the value that asks for nothing, and what to do instead."""

Params = TypeVar("Params")


def _knows_vllms_options(cls: type[Params]) -> type[Params]:
    """Let code written for vLLM meet a sentence, not a TypeError; what asks for nothing is taken."""
    init = cls.__init__
    own = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(init)
    def checked(self: Any, **options: Any) -> None:
        for name in options.keys() & NOT_HERE.keys():
            value = options.pop(name)
            neutral, instead = NOT_HERE[name]
            if value is not None and not (type(value) is type(neutral) and value == neutral):
                raise ConfigError(f"{name} of vLLM's SamplingParams is not supported by this engine: {instead}")
        reject_unknown(list(options), own, "sampling option")
        init(self, **options)

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls


@_knows_vllms_options
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop; names, meanings and order of application are vLLM's.

    Order: allowed tokens, biases and the least length; repetition, frequency and presence penalty; bad words;
    temperature; min-p; top-k; top-p. Options of vLLM's that are not here are refused by name.

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
    min_tokens : int
        Tokens before which nothing but ``max_tokens`` ends the output.
    stop : str or sequence of str
        Strings that end the output; they are not part of the text.
    stop_token_ids : sequence of int
        Tokens that end the output.
    ignore_eos : bool
        Go on after the end-of-sequence token.
    logit_bias : mapping of int to float, optional
        Added to the logits of these tokens.
    allowed_token_ids : sequence of int, optional
        Tokens that may be said, and no others.
    bad_words : sequence of str
        Words that must not be said, as a text's first word or after a space: the last token of each, where the tokens
        before it have been said.

    Raises
    ------
    ConfigError
        If a value is not allowed, or the engine lacks what an option of vLLM's asks for.

    Examples
    --------
    >>> from vegas_spec import SamplingParams
    >>> SamplingParams(temperature=0, max_tokens=64, stop="END").greedy
    True
    >>> SamplingParams(top_p=1.5)
    Traceback (most recent call last):
    vegas_spec.config.ConfigError: top_p must be a number above 0 and at most 1; got 1.5
    >>> SamplingParams(n=2)
    Traceback (most recent call last):
    vegas_spec.config.ConfigError: n of vLLM's SamplingParams is not supported by this engine: give the prompt n times

    One object serves any number of requests:

    >>> llm = LLM(model, tokenizer)
    >>> params = SamplingParams(logit_bias={5: 100.0}, max_tokens=2, seed=1)
    >>> [output.outputs[0].token_ids for output in llm.generate(["one", "two"], params)]
    [[5, 5], [5, 5]]

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
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()

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
        check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        self._set_strings("stop", (self.stop,) if isinstance(self.stop, str) else self.stop or ())
        self._set_strings("bad_words", self.bad_words or ())
        self._set_tokens("stop_token_ids", self.stop_token_ids or ())
        if self.allowed_token_ids is not None:
            self._set_tokens("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise invalid("allowed_token_ids", "left out, or hold a token", self.allowed_token_ids)
        bias = self.logit_bias
        if bias is not None and not (isinstance(bias, Mapping) and all(map(_is_bias, bias.items()))):
            raise invalid("logit_bias", "finite numbers by token id", bias)

    def _set_strings(self, option: str, value: object) -> None:
        if (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or not all(isinstance(x, str) and x for x in value)
        ):
            raise invalid(option, "strings that are not empty", value)
        object.__setattr__(self, option, tuple(dict.fromkeys(value)))

    def _set_tokens(self, option: str, value: object) -> None:
        if not isinstance(value, Sequence) or not all(isinstance(token, int) and token >= 0 for token in value):
            raise invalid(option, "token ids of at least 0", value)
        object.__setattr__(self, option, tuple(dict.fromkeys(value)))

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Whether tokens are penalised for what was said before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _is_bias(item: tuple[object, object]) -> bool:
    token, value = item
    return isinstance(token, int) and token >= 0 and isinstance(value, int | float) and math.isfinite(value)


def _check_float(option: str, value: object, allowed: str, holds: bool) -> None:
    # A NaN compares false with everything, so it never holds.
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds:
        raise invalid(option, f"a number {allowed}", value)
