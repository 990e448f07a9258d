"""A model that says what it is told to, a tokenizer of bytes to tell it in, and folders of tiny models with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_models import small_qwen3, tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vegas_spec import LLM, RequestOutput, SamplingParams
from vegas_spec.engine.backend import Backend

LETTERS: dict[int, str] = bytes_to_unicode()
"""How a byte-level vocabulary writes each byte."""
SHARP_S = "".join(LETTERS[byte] for byte in "ß".encode())
HALF = "d" + LETTERS[0xF0]
"""A letter and the first byte of a character of four."""


def byte_tokenizer() -> Any:
    """One token per byte, some for several bytes or half a character, and three special ones."""
    pieces = ["ab", "abc", SHARP_S + "!", HALF]
    vocab = {token: number for number, token in enumerate(["<pad>", "<s>", "</s>", *LETTERS.values(), *pieces])}
    core = Tokenizer(models.BPE(vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


TOKENIZER = byte_tokenizer()
EOS = 2


def spell(text: str | bytes) -> list[int]:
    """Tokens of single bytes."""
    data = text.encode() if isinstance(text, str) else text
    return [TOKENIZER.convert_tokens_to_ids(LETTERS[byte]) for byte in data]


def piece(token: str) -> list[int]:
    return [TOKENIZER.convert_tokens_to_ids(token)]


def scripted_llm(says: Sequence[int], *, prompt_len: int = 1, wrong_every: int = 3, **options: Any) -> LLM:
    """An engine that says the given tokens, whose drafts are wrong at every third position."""
    config = small_qwen3(len(TOKENIZER), num_hidden_layers=1, eos_token_id=EOS)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    llm = LLM(model, TOKENIZER, **options)

    def forward(token_ids: Sequence[int], positions: Sequence[int], backend: Backend, rows: Sequence[int]) -> Tensor:
        logits = torch.zeros(len(rows), len(TOKENIZER))
        for place, row in enumerate(rows):
            at = positions[row] + 1 - prompt_len
            token = says[at] if 0 <= at < len(says) else EOS
            wrong = backend.kind == "draft" and wrong_every and at % wrong_every == 1
            logits[place, (token + 1) % len(TOKENIZER) if wrong else token] = 100.0
        return logits

    llm.model.forward = forward  # type: ignore[method-assign]
    return llm


def say(says: Sequence[int], params: SamplingParams, **options: Any) -> RequestOutput:
    return scripted_llm(says, **options).generate("x", params)[0]


TALK = SamplingParams(temperature=0, max_tokens=100)


def save_model(family: str, path: Path, **config: Any) -> Path:
    """A model in a folder, with other values in its config.json."""
    tiny_model(family).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return path
