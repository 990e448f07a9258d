"""A transformers model made ready for the engine: checks, one forward pass over a packed batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vegas_spec.engine import hook
from vegas_spec.engine.attention import AttentionParams
from vegas_spec.engine.backend import Attending
from vegas_spec.engine.kv_cache import LayerSpec
from vegas_spec.engine.support import ModelError, check_supported


class Model:
    """A causal language model whose attention is run by an `Attending` object.

    Parameters
    ----------
    module : transformers.PreTrainedModel
        Set to ``attn_implementation="vegas"`` from now on.
    tokenizer : transformers.PreTrainedTokenizerBase or None
        None if prompts come as token ids and text is not wanted.
    name : str
        For messages.

    Raises
    ------
    ModelError
        If the architecture is not supported.

    """

    def __init__(self, module: Any, tokenizer: Any | None, name: str) -> None:
        check_supported(module.config, name)
        hook.register()
        own_attention = module.config._attn_implementation
        module.set_attn_implementation(hook.NAME)
        self.module = module.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.device: torch.device = module.device
        self.dtype: torch.dtype = module.dtype
        self.vocab_size: int = module.config.vocab_size
        try:
            self.layers = self._look_at_layers()
        except ModelError:
            module.set_attn_implementation(own_attention)
            raise

    @property
    def context_length(self) -> int:
        """Most tokens that the model was made for."""
        return int(self.module.config.max_position_embeddings)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an output, as in vLLM: the generation config's (else the model's), and the tokenizer's."""
        config, generation = self.module.config, self.module.generation_config
        eos = None if generation is None else generation.eos_token_id
        eos = getattr(config, "eos_token_id", None) if eos is None else eos
        own = getattr(self.tokenizer, "eos_token_id", None)
        return frozenset([*(eos if isinstance(eos, list) else [eos]), own]) - {None}

    def forward(
        self, token_ids: Sequence[int], positions: Sequence[int], backend: Attending, rows: Sequence[int]
    ) -> Tensor:
        """Run the model over a packed batch.

        Parameters
        ----------
        token_ids, positions : sequence of int
            One per row of the batch, all requests' rows one after the other.
        backend : Attending
            What attention does.
        rows : sequence of int
            Rows whose logits are wanted.

        Returns
        -------
        Tensor
            Logits, shape ``[len(rows), vocab]``.

        """
        if (attention := self.module.config._attn_implementation) != hook.NAME:
            # Any other attention would ignore the backend and mix up the requests of the batch.
            raise ModelError(f"{self.name} was set to attention {attention!r}; an engine needs a model of its own")
        tokens = torch.tensor([token_ids], device=self.device)
        output = self.module(
            input_ids=tokens,
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(rows, device=self.device),
            **{hook.BACKEND_ARGUMENT: backend},
        )
        logits: Tensor = output.logits[0]
        return logits

    def _look_at_layers(self) -> list[LayerSpec]:
        look = _Look()
        layers, expected = look.layers, self.module.config.num_hidden_layers
        reason = None
        outside = "its layers do not run through transformers' attention interface"
        try:
            with torch.inference_mode():
                self.forward([0], [0], look, [0])
        except ModelError as error:
            switched = self.module.config._attn_implementation == hook.NAME
            reason = f"{error}." if switched else f"{outside}."
        except Exception as error:
            reason = f"{outside} ({type(error).__name__})."
        if reason is None and [layer.index for layer in layers] != list(range(expected)):
            reason = f"{len(layers)} of its {expected} layers run through transformers' attention interface."
        if reason is not None:
            raise ModelError(
                f"{self.name} is of type {self.module.config.model_type!r}, which is not supported: {reason}"
            )
        return layers


class _Look(Attending):
    """Notes what each attention layer looks like; computes nothing of use."""

    def __init__(self) -> None:
        self.layers: list[LayerSpec] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        if key.shape != value.shape:
            raise ModelError("its keys and values differ in size")
        self.layers.append(LayerSpec(layer, query.shape[0], key.shape[0], query.shape[2], params.sliding_window))
        return torch.zeros_like(query).transpose(0, 1)
