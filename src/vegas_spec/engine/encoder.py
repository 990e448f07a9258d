"""Text to tokens, by a model's own tokenizer and chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vegas_spec.engine.prompts import InputError, TokensPrompt

if TYPE_CHECKING:
    from vegas_spec.engine.llm import LLM


class Encoder:
    """A tokenizer and its chat template; without a template, a message is plain text.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
        Of the model.
    name : str
        Of the model, for messages.

    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        if tokenizer is None:
            raise InputError(f"{name} came without a tokenizer, and a workload's prompts are text")
        self._tokenizer = tokenizer
        self._name = name

    @classmethod
    def of(cls, llm: LLM) -> Encoder:
        """Take an engine's tokenizer."""
        return cls(llm.model.tokenizer, llm.model.name)

    def encode(self, text: str) -> list[int]:
        """Tokens of a piece of text, nothing added."""
        # Without a warning that a text is longer than the model's context: it will be cut.
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def message(self, content: str) -> list[int]:
        """Tokens of a user's message up to where the answer begins."""
        return self.encode(self._written_out(content))

    def around(self, content: str, mark: str) -> tuple[list[int], list[int]]:
        """Tokens of a user's message before and after a mark in it."""
        before, after = self._written_out(content).split(mark)
        return self.encode(before), self.encode(after)

    def decode(self, tokens: list[int]) -> str:
        """Text of tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def _written_out(self, content: str) -> str:
        if not getattr(self._tokenizer, "chat_template", None):
            return content
        messages = [{"role": "user", "content": content}]
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the model's; it raises what it likes
            raise InputError(f"the chat template of {self._name} refuses a user's message: {error}") from error


def cut_middle(tokens: list[int], most: int) -> TokensPrompt:
    """Shorten to `most` tokens from the middle: instructions stand at a prompt's start or its end."""
    if len(tokens) > most:
        tokens = tokens[: most // 2] + tokens[len(tokens) - (most - most // 2) :]
    return {"prompt_token_ids": tokens}
