"""Token ids to text, one token at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"
# A character has at most four bytes, so at most three stand where one is not finished.
_HELD = 3
# The first characters of a decoded piece may differ from what they are within the whole: a space is dropped, or the
# bytes of a character that was cut are shown one by one.
_EDGE = 4
# Tokens that are decoded again with each new one, at least; up to twice as many are. Chosen by hand.
_CONTEXT = 16
# How a tokenizer with byte fallback (Llama 2, Mistral, Gemma) spells a byte of what its vocabulary lacks.
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TextStream:
    """Decodes an output as it grows: the text is that of all tokens decoded at once, whatever the tokenizer.

    Characters whose last bytes are still to come are held back, and text is never taken back.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase or None
        None gives no text.
    stop : sequence of str
        Strings to look for.
    min_tokens : int
        Only a stop string that ends in the text of later tokens counts.

    """

    def __init__(self, tokenizer: Any | None, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._min_tokens = min_tokens
        added = getattr(tokenizer, "added_tokens_decoder", None) or {}
        self._skipped = {number for number, token in added.items() if token.special}
        self._tokens = 0
        self._text = ""
        self._window: list[int] = []
        """The last tokens: the text so far goes on as their own text does."""
        self._taken = 0
        """Characters of the window's text that are in ``_text``."""
        self._not_searched = 0
        """Length of the text in which no stop string may end."""

    def append(self, token: int) -> tuple[str, str | None]:
        """Add a token; return the text so far and the stop string that it completed, if any.

        Of several, the one that is complete first. The text ends before it.
        """
        self._tokens += 1
        if self._tokenizer is None or token in self._skipped:
            return self._text, None
        if self._tokenizer.convert_ids_to_tokens(token) is None:  # a model's vocabulary may be padded
            return self._text, None
        self._window.append(token)
        # If one byte of a run is out of place, none of its bytes is decoded: what they say is known when they end.
        in_run = self._is_byte(token)
        if in_run and not self._stop:
            return self._text, None
        decoded = self._decode(self._window)
        new = decoded[self._taken :]
        new = new[: max(len(new.rstrip(_UNFINISHED)), len(new) - _HELD)]
        if self._tokens <= self._min_tokens:
            self._not_searched = len(self._text) + len(new)
        elif found := self._find_stops(self._text + new):
            end, _, stop = min(found)
            self._text = (self._text + new)[: end - len(stop)]
            return self._text, stop
        if not in_run:
            self._text += new
            self._taken += len(new)
            self._shorten(decoded)
        return self._text, None

    def flush(self) -> str:
        """Return all text, an unfinished character included."""
        if self._window:
            decoded = self._decode(self._window)
            self._text += decoded[self._taken :]
            self._taken = len(decoded)
        return self._text

    def _find_stops(self, text: str) -> list[tuple[int, int, str]]:
        """Where stop strings end that were not complete before; their places in the list break ties."""
        begin = max(self._not_searched, len(self._text)) + 1
        found = [(text.find(stop, max(0, begin - len(stop))), place, stop) for place, stop in enumerate(self._stop)]
        return [(at + len(stop), place, stop) for at, place, stop in found if at >= 0]

    def _shorten(self, decoded: str) -> None:
        """Forget the window's oldest tokens if what is left says the same, but for its edge."""
        start = len(self._window) - _CONTEXT
        if start < _CONTEXT:
            return
        while start > 0 and self._is_byte(self._window[start]):
            start -= 1
        shorter = self._decode(self._window[start:])
        taken = len(shorter) - (len(decoded) - self._taken)
        if start > 0 and taken > _EDGE and decoded.endswith(shorter[_EDGE:]):
            del self._window[:start]
            self._taken = taken

    def _is_byte(self, token: int) -> bool:
        return _BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token))) is not None  # type: ignore[union-attr]

    def _decode(self, tokens: Sequence[int]) -> str:
        # "a ." stays as it was said: rewriting it would need what comes next.
        text = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)  # type: ignore[union-attr]
        return str(text)
