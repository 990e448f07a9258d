"""What Vegas does not support in vLLM: one table, checked when the engine is configured. Nothing is downgraded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from vegas_spec.config import ConfigError

_ABSENT = object()


@dataclass(frozen=True)
class Refusal:
    """One unsupported combination.

    Attributes
    ----------
    needs : str
        What Vegas requires or supports.
    got : callable
        From a ``VllmConfig`` to what was asked for instead; None if the combination is supported.
    instead : str
        The way out.

    """

    needs: str
    got: Callable[[Any], str | None]
    instead: str


def value(path: str, default: Any = None) -> Callable[[Any], Any]:
    """Read a dotted attribute of the config; `default` where this vLLM has no such field."""
    read = attrgetter(path)

    def get(config: Any) -> Any:
        try:
            return read(config)
        except AttributeError:
            return default

    return get


def unless(path: str, allowed: object) -> Callable[[Any], str | None]:
    """Report the field unless it is `allowed` or absent."""
    get, name = value(path, _ABSENT), path.rpartition(".")[2]

    def got(config: Any) -> str | None:
        found = get(config)
        return None if found is _ABSENT or found == allowed else f"{name}={found}"

    return got


def given(path: str) -> Callable[[Any], str | None]:
    """Report the field if it is set to anything true."""
    get, name = value(path), path.rpartition(".")[2]
    return lambda config: name if get(config) else None


def _multimodal(config: Any) -> str | None:
    multimodal = value("model_config.multimodal_config")(config)
    return None if multimodal is None or multimodal.language_model_only else "a multimodal model"


def _connector(config: Any) -> str | None:
    transfer = config.kv_transfer_config
    name = getattr(transfer, "kv_connector", None)
    return None if name in (None, "DecodeBenchConnector") else f"kv_connector={name}"


def _data_parallel_experts(config: Any) -> str | None:
    size = config.parallel_config.data_parallel_size
    return f"data_parallel_size={size} with a mixture of experts" if size > 1 and config.model_config.is_moe else None


def _data_parallel_adaptive(config: Any) -> str | None:
    size = config.parallel_config.data_parallel_size
    ours = config.additional_config.get("vegas", {}).get("config", {})
    return f"data_parallel_size={size} with adaptive" if size > 1 and ours.get("adaptive") else None


def _cache_dtype(config: Any) -> str | None:
    dtype = config.cache_config.cache_dtype
    return None if dtype in ("auto", "float16", "bfloat16", "float32") else f"kv_cache_dtype={dtype}"


def _recurrent(config: Any) -> str | None:
    model = config.model_config
    return "a model with recurrent state" if model.is_hybrid or model.is_attention_free else None


def _old_runner(config: Any) -> str | None:
    return None if config.use_v2_model_runner else "the V1 runner"


def _batch_invariance(config: Any) -> str | None:
    from vllm import envs

    return "VLLM_BATCH_INVARIANT=1" if getattr(envs, "VLLM_BATCH_INVARIANT", False) else None


def _platform(config: Any) -> str | None:
    from vllm.platforms import current_platform

    platform: Any = current_platform
    return None if platform.is_cuda() or platform.is_cpu() else platform.device_name


REFUSALS = (
    Refusal("supports NVIDIA GPUs and CPUs", _platform, "Serve on one of these, or without vegas"),
    Refusal(
        "requires vLLM's V2 model runner",
        _old_runner,
        "Unset VLLM_USE_V2_MODEL_RUNNER, and leave out what vLLM's log names as unsupported by it",
    ),
    Refusal(
        "supports generation by decoder-only models",
        unless("model_config.runner_type", "generate"),
        "Serve this model without vegas",
    ),
    Refusal(
        "supports decoder-only models",
        lambda c: "an encoder-decoder model" if c.model_config.is_encoder_decoder else None,
        "Serve this model without vegas",
    ),
    Refusal(
        "supports text models",
        _multimodal,
        "Pass --language-model-only to serve its language model, or serve it without vegas",
    ),
    Refusal(
        "supports one position per token", given("model_config.uses_mrope"), "Serve this model (M-RoPE) without vegas"
    ),
    Refusal(
        "supports prompts of tokens", given("model_config.enable_prompt_embeds"), "Leave --enable-prompt-embeds out"
    ),
    Refusal("supports softmax attention", given("model_config.use_mla"), "Serve this model (MLA) without vegas"),
    Refusal(
        "supports models whose only state is a KV cache",
        _recurrent,
        "Serve this model without vegas",
    ),
    Refusal(
        "supports full and sliding-window attention",
        given("model_config.attention_chunk_size"),
        "Serve this model (chunked-local attention) without vegas",
    ),
    Refusal(
        "supports full and sliding-window attention",
        given("model_config.rswa_window"),
        "Serve this model (reference sliding window) without vegas",
    ),
    Refusal(
        "supports one pipeline stage, since the draft runs the whole model",
        unless("parallel_config.pipeline_parallel_size", 1),
        "Use tensor parallelism instead",
    ),
    Refusal(
        "supports an undivided context",
        unless("parallel_config.prefill_context_parallel_size", 1),
        "Use tensor parallelism instead",
    ),
    Refusal(
        "supports an undivided context",
        unless("parallel_config.decode_context_parallel_size", 1),
        "Use tensor parallelism instead",
    ),
    Refusal(
        "supports data parallelism of dense models",
        _data_parallel_experts,
        "Run independent servers behind a load balancer, or use tensor parallelism instead",
    ),
    Refusal(
        "supports adaptive drafts of one engine, as ranks of data parallelism must draft alike",
        _data_parallel_adaptive,
        "Leave adaptive out, or run independent servers behind a load balancer",
    ),
    Refusal("supports a fixed expert placement", given("parallel_config.enable_eplb"), "Leave --enable-eplb out"),
    Refusal("supports undivided batches", given("parallel_config.use_ubatching"), "Leave --enable-dbo out"),
    Refusal("supports models without adapters", given("lora_config"), "Merge the adapter into the weights instead"),
    Refusal(
        "supports verification of every draft",
        given("speculative_config.enable_adaptive_verification"),
        "Leave enable_adaptive_verification out",
    ),
    Refusal(
        "supports the KV cache on the device, and the decode bench connector",
        _connector,
        "Leave --kv-transfer-config out",
    ),
    Refusal("supports the KV cache on the device", given("cache_config.kv_offloading_size"), "Leave KV offloading out"),
    Refusal(
        "supports prefill through all layers",
        given("cache_config.kv_sharing_fast_prefill"),
        "Leave --kv-sharing-fast-prefill out",
    ),
    Refusal(
        "supports a KV cache in 16 or 32 bits",
        _cache_dtype,
        "Use --kv-cache-dtype auto instead",
    ),
    Refusal(
        "supports vLLM's own logits processors",
        given("model_config.logits_processors"),
        "Leave --logits-processors out",
    ),
    Refusal(
        "supports weights that stay loaded", given("model_config.enable_sleep_mode"), "Leave --enable-sleep-mode out"
    ),
    Refusal(
        "requires attention whose rounding may depend on the batch",
        _batch_invariance,
        "Unset it, or serve without vegas",
    ),
    Refusal("supports sampling without watermark", given("watermark_config"), "Leave --watermark-config out"),
)


def check(vllm_config: Any) -> None:
    """Raise a `ConfigError` for the first unsupported combination."""
    for refusal in REFUSALS:
        got = refusal.got(vllm_config)
        if got is not None:
            raise ConfigError(f"vegas {refusal.needs}; got {got}. {refusal.instead}.")


def check_layers(layers: dict[str, Any]) -> None:
    """Raise a `ConfigError` for the first attention layer that Vegas cannot draft with, once the model is built."""
    for name, layer in layers.items():
        impl = getattr(layer, "impl", None)
        got = None
        if not hasattr(impl, "vegas"):
            got = f"{type(impl).__name__ if impl is not None else type(layer).__name__}"
        elif layer.attn_type != "decoder":
            got = f"attention of type {layer.attn_type}"
        elif getattr(impl, "alibi_slopes", None) is not None:
            got = "ALiBi"
        elif layer.kv_sharing_target_layer_name is not None:
            got = f"the KV cache of {layer.kv_sharing_target_layer_name}"
        if got is not None:
            raise ConfigError(
                f"vegas requires decoder attention layers with rotary positions and a KV cache of their own; got {got} "
                f"in {name}. Serve this model without vegas."
            )


def check_same_shape(layers: dict[str, Any]) -> None:
    """Raise a `ConfigError` unless all full-attention layers have the same heads, as their drafts share scratch."""
    shapes = {name: (layer.num_heads, layer.num_kv_heads, layer.head_size) for name, layer in layers.items()}
    different = sorted(set(shapes.values()))
    if len(different) > 1:
        raise ConfigError(
            "vegas requires full-attention layers of one shape (heads, KV heads, head size); got "
            f"{', '.join(map(str, different))}. Use policy 'dense', or serve this model without vegas."
        )
