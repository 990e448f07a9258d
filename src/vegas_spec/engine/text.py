"""Token ids to text, one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"
# A byte-level tokenizer needs at most four tokens to spell one character, and some decode a token differently at the
# start of a text; decoding from a few tokens back gives both their context.
_CONTEXT = 6


class TextStream:
    """Decodes an output as it grows, holds back unfinished characters, and looks for stop strings."""

    def __init__(self, tokenizer: Any | None, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._tokens: list[int] = []
        self._text = ""
        self._decoded = 0
        """Tokens whose text is in ``_text``."""

    def append(self, token: int) -> tuple[str, str | None]:
        """Add a token; return the text so far and the stop string that it completed, if any.

        The text ends before the stop string. A character whose last bytes are still to come is held back.
        """
        self._tokens.append(token)
        new = self._new_text()
        complete = new.rstrip(_UNFINISHED)
        found = [(at, stop) for stop in self._stop if (at := self._find(stop, complete)) >= 0]
        if found:
            end, stop = min(found)
            self._text = (self._text + complete)[:end]
            return self._text, stop
        if complete == new:
            self._take(new)
        return self._text, None

    def _find(self, stop: str, new: str) -> int:
        """Where a stop string that ends within the new text begins; -1 if there is none."""
        return (self._text + new).find(stop, max(0, len(self._text) - len(stop) + 1))

    def flush(self) -> str:
        """Return all text, an unfinished character included."""
        self._take(self._new_text())
        return self._text

    def _new_text(self) -> str:
        if self._tokenizer is None:
            return ""
        begin = max(0, self._decoded - _CONTEXT)
        before = self._decode(self._tokens[begin : self._decoded])
        return self._decode(self._tokens[begin:])[len(before) :]

    def _take(self, new: str) -> None:
        self._text += new
        self._decoded = len(self._tokens)

    def _decode(self, tokens: Sequence[int]) -> str:
        if self._tokenizer is None or not tokens:
            return ""
        # "a ." stays as it was said: rewriting it would need what comes next.
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
