"""The way into a transformers model: its public attention interface.

The model calls `attention` in every layer with its own module, queries, keys and values. What to do there travels in
the call's keyword arguments (`Attending`), so nothing is kept in the process: two engines, or two threads, do not meet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vegas_spec.engine.attention import AttentionParams
from vegas_spec.engine.backend import Attending
from vegas_spec.engine.support import ModelError

NAME = "vegas"
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


def register() -> None:
    """Make ``attn_implementation="vegas"`` known to transformers; doing it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, no_mask)


def no_mask(*args: Any, **kwargs: Any) -> None:
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
