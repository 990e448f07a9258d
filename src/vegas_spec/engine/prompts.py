"""Prompts, in vLLM's shape, and the requests that are made of them."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from typing import Any, TypedDict, cast

from vegas_spec.config import ConfigError, invalid
from vegas_spec.engine.model import Model
from vegas_spec.engine.outputs import CompletionOutput, RequestOutput, RequestStats
from vegas_spec.engine.request import PrefilledPrompt, Request
from vegas_spec.engine.sampler import Sampler
from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.engine.text import TextStream


class InputError(ValueError):
    """A prompt cannot be run; the message says why and what to do."""


class TokensPrompt(TypedDict):
    """A prompt that is token ids already."""

    prompt_token_ids: list[int]


Prompt = str | TokensPrompt | PrefilledPrompt


def make_requests(
    prompts: Prompt | Sequence[Prompt],
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    model: Model,
    max_model_len: int,
    num_speculative_tokens: int,
    seeds: random.Random,
) -> list[Request]:
    """Check prompts and make the requests that an engine runs.

    Parameters
    ----------
    prompts, sampling_params
        See `vegas_spec.LLM.generate`.
    model : Model
        Whose tokenizer and vocabulary they are for.
    max_model_len : int
        Most tokens of a request, prompt and output.
    num_speculative_tokens : int
        Most drafts per iteration, for the statistics.
    seeds : random.Random
        Gives the seeds of requests that bring none.

    Raises
    ------
    InputError
        For a prompt that cannot be run, or parameters that do not belong to the prompts.
    ConfigError
        For parameters that need a tokenizer which the model lacks.

    """
    several = cast(Sequence[Prompt], [prompts] if isinstance(prompts, str | dict | PrefilledPrompt) else prompts)
    if not isinstance(several, Sequence):
        raise InputError(f"prompts are a prompt or a list of them; got {type(prompts).__name__}")
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        sampling_params = [sampling_params or SamplingParams()] * len(several)
    each = sampling_params if isinstance(sampling_params, Sequence) else [sampling_params]
    if not all(isinstance(params, SamplingParams) for params in each):
        raise InputError(
            f"sampling_params are SamplingParams, one for all prompts or a list; got {repr(sampling_params)[:60]}"
        )
    if len(sampling_params) != len(several):
        raise InputError(f"{len(several)} prompts need as many sampling_params; got {len(sampling_params)}")
    return [
        _request(number, prompt, params, model, max_model_len, num_speculative_tokens, seeds)
        for number, (prompt, params) in enumerate(zip(several, sampling_params, strict=True))
    ]


def _request(
    number: int,
    prompt: Prompt,
    params: SamplingParams,
    model: Model,
    max_model_len: int,
    num_speculative_tokens: int,
    seeds: random.Random,
) -> Request:
    prefilled = prompt if isinstance(prompt, PrefilledPrompt) else None
    if prefilled is not None and prefilled.model is not model:
        raise InputError(f"prompt {number} was read by another model; read it with this engine's own prefill")
    text = prompt if isinstance(prompt, str) else None if prefilled is None else prefilled.text
    tokens = _tokenize(prompt, model)
    if not tokens:
        raise InputError(f"prompt {number} is empty; it needs at least one token")
    if len(tokens) >= max_model_len:
        raise InputError(
            f"prompt {number} has {len(tokens)} tokens, but the context is {max_model_len} tokens and the "
            "answer needs at least one; shorten the prompt or raise max_model_len, if the model allows it"
        )
    bad = next((token for token in tokens if not 0 <= token < model.vocab_size), None)
    if bad is not None:
        raise InputError(f"prompt {number} holds token {bad}; token ids go from 0 to {model.vocab_size - 1}")
    for option in ("stop", "bad_words"):
        if getattr(params, option) and model.tokenizer is None:
            text = getattr(params, option)
            raise invalid(option, "empty, since this model came without a tokenizer to see text with", text)
    room = max_model_len - len(tokens)
    seed = seeds.getrandbits(63) if params.seed is None else params.seed
    output = RequestOutput(
        request_id=str(number),
        prompt=text,
        prompt_token_ids=list(tokens),
        outputs=[CompletionOutput(0, "", [], [])],
        stats=RequestStats(num_speculative_tokens),
    )
    return Request(
        output=output,
        params=params,
        sampler=_sampler(params, tokens, seed, model),
        text=TextStream(model.tokenizer, params.stop, params.min_tokens),
        eos_token_ids=model.eos_token_ids,
        max_length=len(tokens) + min(room, params.max_tokens or room),
        token_ids=list(tokens),
        prefilled=prefilled,
    )


def _sampler(params: SamplingParams, prompt: Sequence[int], seed: int, model: Model) -> Sampler:
    allowed = params.allowed_token_ids
    for option, tokens in (("logit_bias", params.logit_bias), ("allowed_token_ids", allowed)):
        if any(token >= model.vocab_size for token in tokens or ()):
            raise invalid(option, f"of token ids from 0 to {model.vocab_size - 1}", tokens)
    # What is beyond the vocabulary is never said.
    bad_words = [tokens for word in params.bad_words for tokens in _bad_word(word, model.tokenizer)]
    bad_words = [tokens for tokens in bad_words if max(tokens) < model.vocab_size]
    stops = {token for token in model.eos_token_ids.union(params.stop_token_ids) if token < model.vocab_size}
    banned = {tokens[-1] for tokens in bad_words} | (stops if params.min_tokens else set())
    if allowed is not None and banned.issuperset(allowed):
        raise ConfigError(
            "allowed_token_ids must hold a token that neither ends a bad word nor, with min_tokens, the output; "
            f"got {allowed}"
        )
    return Sampler(params, prompt, seed, stops, bad_words)


def _bad_word(word: str, tokenizer: Any) -> list[list[int]]:
    """Tokens of a bad word at a text's start, and after a space if that makes another token of it, as vLLM has it."""
    alone, spaced = (
        list(tokenizer(prefix + word.lstrip(), add_special_tokens=False).input_ids) for prefix in ("", " ")
    )
    if not alone:
        raise invalid("bad_words", "words that have tokens", word)
    other = bool(spaced) and spaced[0] != alone[0] and len(spaced) == len(alone)
    return [alone, spaced] if other else [alone]


def _tokenize(prompt: Prompt, model: Model) -> list[int]:
    if isinstance(prompt, PrefilledPrompt):
        return list(prompt.token_ids)
    if not isinstance(prompt, str):
        try:
            return [operator.index(token) for token in prompt["prompt_token_ids"]]
        except (TypeError, KeyError, IndexError):
            shown = repr(prompt)[:60]
            raise InputError(
                f"a prompt is text or {{'prompt_token_ids': [...]}} with whole numbers; got {shown}"
            ) from None
    if model.tokenizer is None:
        raise invalid("prompts", "token ids, since this model came without a tokenizer", prompt[:40])
    if not prompt:
        return []
    return list(model.tokenizer(prompt).input_ids)
