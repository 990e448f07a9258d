"""The Python API, in vLLM's shape."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig, check_choice, check_int, invalid, reject_unknown
from vegas_spec.engine.engine import AttentionChoice, Engine
from vegas_spec.engine.loading import load_model
from vegas_spec.engine.model import Model
from vegas_spec.engine.observer import Trace
from vegas_spec.engine.outputs import RequestOutput, Update
from vegas_spec.engine.prompts import InputError, Prompt, TokensPrompt, make_requests
from vegas_spec.engine.request import PrefilledPrompt, Request
from vegas_spec.engine.sampling_params import SamplingParams

Message = dict[str, str]


class LLM:
    """A model that drafts for itself.

    It drafts at every iteration, whether that gains or not: unlike the plugin it never falls back to plain decoding,
    unless with ``adaptive=True``.

    Parameters
    ----------
    model : str, os.PathLike or transformers.PreTrainedModel
        Hub id, folder, GGUF file, or a loaded model (which then belongs to this engine).
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        For a loaded model; the others bring their own.
    dtype, device, revision, hf_overrides
        See `vegas_spec.engine.loading.load_model`.
    max_model_len : int, optional
        Most tokens of a request, prompt and output; at most, and by default, what the model was made for.
    max_num_seqs : int
        Most requests in one batch.
    prefill_chunk_size : int
        Most prompt tokens in one forward pass: what bounds memory while a prompt is read.
    attention : {"torch", "kernels"}
        See `vegas_spec.engine.engine.Engine`.
    seed : int
        For requests that bring no seed of their own.
    threads : int, optional
        Threads of a CPU that torch computes with, in the whole process from then on (`torch.set_num_threads`); by
        default as many as torch chooses, one per core. They wait for each other many times in a forward pass, so leave
        a core to whatever else is busy: with a thread per core and one core taken, everything can take ten times as
        long.
    **options
        Those of `VegasConfig`.

    Raises
    ------
    ConfigError
        For an unknown option or a value that is not allowed.
    ModelError
        If the model cannot be loaded or is not supported.

    Examples
    --------
    Here ``model`` and ``tokenizer`` are loaded already; mostly one gives a name, as in
    ``LLM("Qwen/Qwen2.5-Coder-0.5B-Instruct")``.

    >>> from vegas_spec import LLM, SamplingParams
    >>> llm = LLM(model, tokenizer, kv_budget=0.05, num_speculative_tokens=6)
    >>> params = SamplingParams(temperature=0, max_tokens=15)
    >>> [output] = llm.generate("def quicksort(items):", params)
    >>> len(output.outputs[0].token_ids), output.outputs[0].finish_reason
    (15, 'length')

    Without drafts the same is said, in more forward passes:

    >>> [plain] = llm.with_config(policy="full").generate("def quicksort(items):", params)
    >>> plain.outputs[0].token_ids == output.outputs[0].token_ids
    True
    >>> plain.stats.mean_acceptance_length, output.stats.mean_acceptance_length
    (1.0, 7.0)

    Text as it comes, and several prompts with options of their own:

    >>> text = [update.output.outputs[0].text for update in llm.stream("def quicksort(items):", params)][-1]
    >>> text == output.outputs[0].text
    True
    >>> outputs = llm.generate(["one", "two"], [params, SamplingParams(top_p=0.9, seed=1, max_tokens=5)])
    >>> [len(each.outputs[0].token_ids) for each in outputs]
    [15, 5]

    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any | None = None,
        *,
        dtype: str = "auto",
        device: str = "auto",
        revision: str | None = None,
        hf_overrides: Mapping[str, Any] | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        prefill_chunk_size: int = 512,
        attention: AttentionChoice = "torch",
        seed: int = 0,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        own = [name for name, each in inspect.signature(LLM).parameters.items() if each.kind is each.KEYWORD_ONLY]
        reject_unknown(list(options), [*(field.name for field in dataclasses.fields(VegasConfig)), *own], "option")
        self.config = VegasConfig.from_dict(options)
        check_int("max_num_seqs", max_num_seqs, 1)
        check_int("prefill_chunk_size", prefill_chunk_size, 1)
        check_choice("attention", attention, get_args(AttentionChoice))
        check_int("seed", seed, 0)
        if threads is not None:
            check_int("threads", threads, 1)
            torch.set_num_threads(threads)
        if isinstance(model, str | os.PathLike):
            if tokenizer is not None:
                raise invalid("tokenizer", "left out: a model that is loaded by name brings its own", tokenizer)
            self.model = load_model(
                os.fspath(model), dtype=dtype, device=device, revision=revision, hf_overrides=hf_overrides
            )
        else:
            for option, value, default in (
                ("dtype", dtype, "auto"),
                ("device", device, "auto"),
                ("revision", revision, None),
                ("hf_overrides", hf_overrides, None),
            ):
                if value != default:
                    raise invalid(option, "left out: a loaded model keeps its own", value)
            self.model = Model(model, tokenizer, type(model).__name__)
        self.max_model_len = self.model.context_length
        if max_model_len is not None:
            check_int("max_model_len", max_model_len, 2, self.model.context_length)
            self.max_model_len = max_model_len
        self._make_engine = functools.partial(
            Engine,
            self.model,
            max_num_seqs=max_num_seqs,
            prefill_chunk_size=prefill_chunk_size,
            attention=attention,
        )
        self._engine = self._make_engine(self.config)
        self._seeds = random.Random(seed)

    def with_config(self, **options: Any) -> LLM:
        """Give another engine over the same loaded model, with these options of `VegasConfig` changed."""
        other = object.__new__(LLM)
        other.__dict__.update(self.__dict__)
        other.config = VegasConfig.from_dict({**self.config.to_dict(), **options})
        other._engine = self._make_engine(other.config)
        return other

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        trace: Trace | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Parameters
        ----------
        prompts : str, TokensPrompt, PrefilledPrompt, or a sequence of them
            What to continue.
        sampling_params : SamplingParams or sequence of SamplingParams, optional
            One for all, or one for each.
        trace : Trace, optional
            Observes what drafting selects. Refused with ``attention="kernels"``.

        Returns
        -------
        list of RequestOutput
            In the order of the prompts. A request that the model broke has ``finish_reason="error"`` and an ``error``.

        Raises
        ------
        InputError
            For a prompt that is empty, or that leaves no room in the context; nothing is run then.

        """
        requests = self._requests(prompts, sampling_params)
        for _ in self._run(requests, trace):
            pass
        return [request.output for request in requests]

    def prefill(
        self, prompts: Prompt | Sequence[Prompt], watch: Callable[[Update], None] | None = None
    ) -> list[PrefilledPrompt]:
        """Read prompts once, for `generate` and `stream` of this engine and of all that `with_config` gives.

        What is generated is the same as from the prompts themselves.

        Parameters
        ----------
        prompts : as in `generate`
            What to read.
        watch : callable, optional
            Called after every piece that was read, to show progress.

        Returns
        -------
        list of PrefilledPrompt
            In the order of the prompts. Each takes as much memory on the model's device as its keys and values do.

        Raises
        ------
        InputError
            As `generate` does.

        """
        read = []
        for request in self._requests(prompts, SamplingParams(max_tokens=1, seed=0)):
            entries = self._engine.read(request, watch)
            read.append(PrefilledPrompt(self.model, request.output.prompt, tuple(request.token_ids), entries))
        return read

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, by the model's chat template; see `generate`."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        if not conversations or not all(conversations):
            raise InputError("a conversation needs at least one message; got none")
        return self.generate([self.chat_prompt(each) for each in conversations], sampling_params)  # type: ignore[arg-type]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        trace: Trace | None = None,
    ) -> Iterator[Update]:
        """Do as `generate` does, and yield every piece of prompt read and every iteration's tokens as they come."""
        return self._run(self._requests(prompts, sampling_params), trace)

    def chat_prompt(self, messages: Sequence[Message]) -> TokensPrompt:
        """Turn a conversation into a prompt by the model's chat template.

        Raises
        ------
        InputError
            If the model has none.

        """
        text = self.chat_text(messages)
        return {"prompt_token_ids": self.model.tokenizer(text, add_special_tokens=False).input_ids}  # type: ignore[misc]

    def chat_text(self, messages: Sequence[Message]) -> str:
        """Write a conversation out as the model's chat template does, up to where the answer begins.

        Raises
        ------
        InputError
            If the model has no chat template, or it refuses the conversation.

        """
        if not self.has_chat_template:
            raise InputError(f"{self.model.name} has no chat template; give the prompt as plain text instead")
        template = self.model.tokenizer.apply_chat_template  # type: ignore[union-attr]
        try:
            return str(template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the model's; it raises what it likes
            raise InputError(f"the chat template of {self.model.name} refuses these messages: {error}") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids; their numbers if the model came without a tokenizer."""
        if self.model.tokenizer is None:
            return " ".join(str(token) for token in token_ids)
        return str(self.model.tokenizer.decode(token_ids))

    def next_token_logits(self, token_ids: Sequence[int]) -> Tensor:
        """Give the plain model's logits for the token after `token_ids`, float32, shape ``[vocab]``."""
        return self._engine.next_token_logits(token_ids)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model's tokenizer brings a chat template."""
        return bool(getattr(self.model.tokenizer, "chat_template", None))

    def _run(self, requests: list[Request], trace: Trace | None) -> Iterator[Update]:
        if trace is not None:
            self._engine.check_trace()
        return self._engine.run(requests, trace) if requests else iter(())

    def _requests(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        gamma = self.config.num_speculative_tokens
        return make_requests(prompts, sampling_params, self.model, self.max_model_len, gamma, self._seeds)
