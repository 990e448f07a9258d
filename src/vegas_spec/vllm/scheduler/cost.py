"""What this engine's steps read, by its model's shape and its memory."""

from __future__ import annotations

import dataclasses
from typing import Any

from vegas_spec.config import VegasConfig
from vegas_spec.pacing.costs import CostModel
from vegas_spec.policies import policy_class
from vegas_spec.vllm.start.options import vegas_config
from vegas_spec.vllm.worker.memory import cache_itemsize, draft_kv_bytes, largest_budget


def budget_in_memory(vllm_config: Any) -> VegasConfig:
    """The options, with ``kv_budget_max`` at what workers have room for in the longest context."""
    config, model, requests = vegas_config(vllm_config), vllm_config.model_config, vllm_config.scheduler_config
    layers, kv_heads = _full_layers(model.hf_text_config), model.get_num_kv_heads(vllm_config.parallel_config)
    limits = requests.max_num_seqs, model.max_model_len, draft_kv_bytes()
    most = largest_budget(config, layers, kv_heads, *limits) if layers else config.budget(model.max_model_len)
    return dataclasses.replace(config, kv_budget_max=max(most, config.kv_budget_min))


def drafted_share(vllm_config: Any) -> float:
    """Share of the longest context that a draft step reads."""
    config = vegas_config(vllm_config)
    longest: int = vllm_config.model_config.max_model_len
    if not policy_class(config.policy).selects:
        return 1.0
    return min(config.kv_budget, budget_in_memory(vllm_config).budget(longest) / longest)


def estimate_cost(vllm_config: Any) -> CostModel:
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
    per_token = _full_layers(hf) * kv_heads * head_dim * 2 * cache_itemsize(vllm_config)
    return CostModel(weights + head, per_token, layers)


def _full_layers(hf: Any) -> int:
    kinds = getattr(hf, "layer_types", None) or ["full_attention"] * hf.num_hidden_layers
    return sum(kind == "full_attention" for kind in kinds)


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
