"""The text of single tokens, so that text can be coloured token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CONTINUED = "\N{MIDDLE DOT}"
"""Stands for a token that goes on with the character that the token before it began."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 8  # tokens; one byte each would be 4, and a joined emoji is several characters


def token_texts(tokenizer: Any | None, token_ids: Sequence[int]) -> list[str]:
    """Give each token's own text, special tokens by name; together they read as the whole does.

    Where a character is spread over several tokens, the first has it and the others have `CONTINUED`. Without a
    tokenizer, the tokens' numbers.
    """
    if tokenizer is None:
        return [f"{token} " for token in token_ids]
    # Some tokenizers drop the space before the first word of what they decode, so each token is decoded after another.
    anchor = tokenizer("a", add_special_tokens=False).input_ids[-1:]
    skip = len(_decode(tokenizer, anchor))
    known = {token: _decode(tokenizer, [*anchor, token])[skip:] for token in dict.fromkeys(token_ids)}
    texts: list[str] = []
    while len(texts) < len(token_ids):
        place = len(texts)
        text, taken = known[token_ids[place]], 1
        if _BROKEN in text:
            for end in range(place + 2, min(place + _LONGEST_CHARACTER, len(token_ids)) + 1):
                whole = _decode(tokenizer, [*anchor, *token_ids[place:end]])[skip:]
                if _BROKEN not in whole:
                    text, taken = whole, end - place
                    break
        texts += [text, *[CONTINUED] * (taken - 1)]
    return texts


def _decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    return str(tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
