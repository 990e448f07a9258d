"""Needles in a haystack: facts hidden in a long text, and a question that only they answer (in the way of RULER)."""

from __future__ import annotations

import random

from vegas_bench.workloads.prompt import Wanted, WorkloadPrompt
from vegas_spec.config import check_int, invalid
from vegas_spec.engine.encoder import Encoder
from vegas_spec.engine.prompts import InputError
from vegas_spec.engine.source_text import source_tokens

_MARK = "<TEXT>"
_ADJECTIVES = ("amber", "brisk", "calm", "dusty", "eager", "faint", "gentle", "hollow", "icy", "jolly")
_NOUNS = ("anchor", "beacon", "canyon", "dagger", "ember", "falcon", "glacier", "harbor", "island", "kettle")


def needle_prompts(encoder: Encoder, wanted: Wanted, *, depth: float | None = None) -> list[WorkloadPrompt]:
    """One needle per prompt.

    Parameters
    ----------
    depth : float, optional
        Where it lies, from 0 (start) to 1 (end); by default spread evenly over the prompts.

    """
    if depth is not None and not 0 <= depth <= 1:
        raise invalid("depth", "a share of the text from 0 to 1", depth)
    prompts = []
    for number, length in enumerate(wanted.lengths()):
        place = (number + 0.5) / wanted.prompts if depth is None else depth
        chance = random.Random(f"needle {wanted.seed} {number}")
        name = f"{number}: {length} tokens, depth {place:.0%}"
        prompts.append(_hide(encoder, chance, length, [place], 1, number, (name, "needle")))
    return prompts


def multi_key_prompts(encoder: Encoder, wanted: Wanted, *, keys: int = 8, queries: int = 2) -> list[WorkloadPrompt]:
    """Several needles per prompt, of which some are asked for; the others distract.

    Parameters
    ----------
    keys : int
        Needles per prompt, at places chosen at random.
    queries : int
        How many of them are asked for.

    """
    check_int("keys", keys, 1, len(_ADJECTIVES) * len(_NOUNS))
    check_int("queries", queries, 1, keys)
    prompts = []
    for number, length in enumerate(wanted.lengths()):
        chance = random.Random(f"multi-key {wanted.seed} {number}")
        places = sorted(chance.random() for _ in range(keys))
        name = f"{number}: {length} tokens, {queries} of {keys} keys"
        prompts.append(_hide(encoder, chance, length, places, queries, number, (name, "multi-key")))
    return prompts


def _hide(
    encoder: Encoder,
    chance: random.Random,
    length: int,
    places: list[float],
    queries: int,
    number: int,
    name_and_kind: tuple[str, str],
) -> WorkloadPrompt:
    names = [f"{adjective}-{noun}" for adjective in _ADJECTIVES for noun in _NOUNS]
    keys = chance.sample(names, len(places))
    values = [str(chance.randrange(1_000_000, 10_000_000)) for _ in keys]
    needles = [
        encoder.encode(f"\n# The magic number of {key} is {value}.\n") for key, value in zip(keys, values, strict=True)
    ]
    asked = chance.sample(range(len(keys)), queries)
    wanted_keys = ", ".join(keys[at] for at in asked)
    before, after = encoder.around(
        f"Some magic numbers are hidden in the following text. Remember them.\n\n{_MARK}\n\n"
        f"What are the magic numbers of {wanted_keys}? Answer with the numbers, in this order, then say of each in "
        "which surroundings it was found.",
        _MARK,
    )
    room = length - len(before) - len(after) - sum(map(len, needles))
    if room < len(needles):
        raise InputError(f"a prompt with {len(needles)} needles needs {length - room + len(needles)} tokens or more")
    hay, _ = source_tokens(encoder, room, number)
    tokens, done = before, 0
    for place, needle in zip(places, needles, strict=True):
        tokens = tokens + hay[done : round(place * room)] + needle
        done = round(place * room)
    tokens = tokens + hay[done:] + after
    return WorkloadPrompt(*name_and_kind, {"prompt_token_ids": tokens}, tuple(rf"\b{values[at]}\b" for at in asked))
