"""A transformers model made ready for the engine: checks, one forward pass over a packed batch.

The way in is transformers' public attention interface: the model calls `attention` in every layer with its own module,
queries, keys and values. What to do there travels in the call's keyword arguments (`Attending`), so nothing is kept in
the process: two engines, or two threads, do not meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vegas_spec.engine.attention import AttentionParams
from vegas_spec.engine.backend import Attending
from vegas_spec.engine.kv_cache import LayerSpec
from vegas_spec.engine.support import ModelError, check_supported, is_out_of_memory, memory_explained

ATTENTION = "vegas"
BACKEND_ARGUMENT = "vegas_backend"
_WITHOUT_EFFECT = {
    "dropout",  # none in evaluation
    "is_causal",  # the module's own says it
    "position_ids",  # queries and keys are position-encoded already
    "cache_position",
    "use_cache",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
}
"""Keyword arguments that change nothing about the attention computed here."""


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
        _register()
        own_attention = module.config._attn_implementation
        module.set_attn_implementation(ATTENTION)
        self.module = module.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.device: torch.device = module.device
        self.dtype: torch.dtype = module.dtype
        self.vocab_size: int = module.config.vocab_size
        try:
            with memory_explained(name, self.device):
                self.layers = self._look_at_layers()
        except Exception:
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
        if (attention := self.module.config._attn_implementation) != ATTENTION:
            # Any other attention would ignore the backend and mix up the requests of the batch.
            raise ModelError(f"{self.name} was set to attention {attention!r}; an engine needs a model of its own")
        tokens = torch.tensor([token_ids], device=self.device)
        output = self.module(
            input_ids=tokens,
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(rows, device=self.device),
            **{BACKEND_ARGUMENT: backend},
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
            switched = self.module.config._attn_implementation == ATTENTION
            reason = f"{error}." if switched else f"{outside}."
        except Exception as error:  # a model that passes other things around breaks in its own way
            if is_out_of_memory(error):
                raise
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


def _register() -> None:
    """Make ``attn_implementation="vegas"`` known to transformers; doing it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Build no mask: a backend knows what each row may see."""


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    vegas_backend: Attending | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Hand one layer's attention to the backend of the run.

    Parameters
    ----------
    query, key, value : Tensor
        Shapes ``[1, heads, rows, head_dim]``, rows of all requests packed.

    Returns
    -------
    (Tensor, None)
        Shape ``[1, rows, num_query_heads, head_dim]``; no attention weights.

    Raises
    ------
    RuntimeError
        If the model is run other than by the engine.
    ModelError
        If the layer attends in a way that backends do not know.

    """
    if attention_mask is not None or not getattr(module, "is_causal", True) or not kwargs.keys() <= _WITHOUT_EFFECT:
        _refuse(module, attention_mask, kwargs)
    if vegas_backend is None:
        raise RuntimeError(
            "attn_implementation='vegas' works only inside vegas_spec.LLM; "
            "to run the model by itself set another one, such as model.set_attn_implementation('sdpa')"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    params = AttentionParams(scale, sliding_window, softcap, s_aux)
    out = vegas_backend.attend(int(module.layer_idx), query[0], key[0], value[0], params)  # type: ignore[arg-type]
    return out[None], None


def _refuse(module: torch.nn.Module, attention_mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    if attention_mask is not None:
        raise ModelError("its layers weigh keys by a mask of their own")
    if not getattr(module, "is_causal", True):
        raise ModelError("its attention is not causal")
    for name in kwargs.keys() - _WITHOUT_EFFECT:
        if kwargs[name] is not None and kwargs[name] is not False:
            raise ModelError(f"its attention depends on {name!r}, which Vegas does not know")
