"""What a step of this engine's model reads, by its shape."""

from __future__ import annotations

from typing import Any

from vegas_spec.pacing.fall_back import Cost
from vegas_spec.vllm.worker.memory import cache_itemsize


def estimate_cost(vllm_config: Any) -> Cost:
    """Estimate from the model's shape; of a mixture of experts, the weights that a full batch touches."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    hf = model.hf_text_config
    ranks, hidden, layers = parallel.tensor_parallel_size, hf.hidden_size, hf.num_hidden_layers
    heads, kv_heads = model.get_num_attention_heads(parallel), model.get_num_kv_heads(parallel)
    head_dim, itemsize = model.get_head_size(), model.dtype.itemsize
    experts = model.get_num_experts()
    intermediate = _intermediate_size(hf, experts > 0)
    active = 1.0
    if experts:
        missed = (1 - min(model.get_num_experts_per_tok() / experts, 1)) ** vllm_config.scheduler_config.max_num_seqs
        active = experts * (1 - missed)
    per_layer = hidden * head_dim * 2 * (heads + kv_heads) + active * 3 * hidden * intermediate / ranks
    weights = layers * per_layer * _bytes_per_weight(model.quantization, itemsize)
    head = model.get_vocab_size() * hidden * itemsize / ranks
    kinds = getattr(hf, "layer_types", None) or ["full_attention"] * layers
    full = sum(kind == "full_attention" for kind in kinds)
    per_token = full * kv_heads * head_dim * 2 * cache_itemsize(vllm_config)
    return Cost(weights + head, per_token, layers)


def _intermediate_size(hf: Any, experts: bool) -> float:
    """Width of a feed-forward block, by the names that model families have for it; most that name none take 4 times."""
    names = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    found = [getattr(hf, name, None) for name in (*(("moe_intermediate_size",) if experts else ()), *names)]
    width = next((each for each in found if each), 4 * hf.hidden_size)
    return sum(width) / len(width) if isinstance(width, (list, tuple)) else float(width)


def _bytes_per_weight(quantization: str | None, itemsize: int) -> float:
    if quantization is None:
        return itemsize
    return 1.0 if "8" in quantization else 0.6
