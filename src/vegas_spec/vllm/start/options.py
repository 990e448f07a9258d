"""From what the user asks for, ``{"method": "vegas", ...}``, to what vLLM is told; and back, in every process.

vLLM's own configuration knows no method of that name and forbids unknown keys, so the request is told in its words: a
custom speculator class, an attention backend registered by us, drafts with their distributions kept, and our options in
``additional_config``, which vLLM hands to every process and hashes into its compile cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from vegas_spec.config import ConfigError, VegasConfig, invalid, policy_paths, reject_unknown
from vegas_spec.pacing.step_pacer import adaptive_gammas
from vegas_spec.policies import policy_class
from vegas_spec.policies.vegas import VegasPolicy

METHOD = "vegas"
SPECULATOR = "vegas_spec.vllm.worker.speculator.VegasSpeculator"
ADDITIONAL_CONFIG_KEY = "vegas"

VLLM_OPTIONS = (
    "num_speculative_tokens_per_batch_size",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
)
"""Keys of vLLM's own speculative configuration that keep their meaning beside ours."""

FALL_BACK = "fall_back"
"""Ours, but no option of the method: whether to decode plainly where drafting cannot gain. True unless set."""

LENGTHS = "draft_lengths"
"""In what we hand on, where the scheduler's decision replaces vLLM's schedule: the lengths of draft to decide among."""

REJECTION_METHODS = ("standard", "block", "synthetic")
COMPATIBLE_BACKENDS = ("CUSTOM", "FLASH_ATTN", "CPU_ATTN")
"""Attention backends a user may have named: ours is a subclass of the latter two, and is what CUSTOM stands for."""

VEGAS_OPTIONS = tuple(field.name for field in dataclasses.fields(VegasConfig))


def requested_options(engine_args: Any) -> dict[str, Any] | None:
    """What the user wrote for the speculative configuration, if its method is ``vegas``; else None.

    ``--spec-method`` and ``--spec-tokens`` count, and keys from ``-sc.kv-budget`` lose their dashes.
    """
    written = engine_args.speculative_config
    options = {key.replace("-", "_"): value for key, value in written.items()} if isinstance(written, Mapping) else {}
    method = options.get("method", engine_args.spec_method)
    if method != METHOD:
        return None
    for flag, key in (("--spec-method", "method"), ("--spec-tokens", "num_speculative_tokens")):
        value = getattr(engine_args, flag[2:].replace("-", "_"))
        if value is not None and options.setdefault(key, value) != value:
            raise ConfigError(
                f"{flag} and speculative_config[{key!r}] must agree; got {value!r} and {options[key]!r}. "
                "Give one of them."
            )
    return options


def split_options(options: Mapping[str, Any]) -> tuple[VegasConfig, bool, dict[str, Any]]:
    """Our options, validated; whether to fall back; and what stays vLLM's."""
    given = {key: value for key, value in options.items() if key != "method"}
    falls_back = given.pop(FALL_BACK, True)
    if not isinstance(falls_back, bool):
        raise invalid(FALL_BACK, "true or false", falls_back)
    if "model" in given:
        raise ConfigError(
            f"speculative_config with method 'vegas' takes no draft model: the target drafts for itself; "
            f"got model={given['model']!r}. Leave it out."
        )
    reject_unknown(list(given), [*VEGAS_OPTIONS, FALL_BACK, *VLLM_OPTIONS], "key of speculative_config")
    config = VegasConfig.from_dict({key: given[key] for key in given if key in VEGAS_OPTIONS})
    policy = policy_class(config.policy)
    if not policy.in_vllm:
        known = [name for name in policy_paths() if policy_class(name).in_vllm]
        raise ConfigError(
            f"vLLM drafts with policy {', '.join(known)}; got {config.policy!r}. "
            "The other policies run in the embedded engine: use vegas_spec.LLM instead."
        )
    if policy.scores and policy.select is not VegasPolicy.select:
        raise ConfigError(
            f"in vLLM the kernels choose the best-scored entries; got policy {config.policy!r}, which scores and "
            "chooses in a way of its own. Set scores to False, or use vegas_spec.LLM instead."
        )
    if config.adaptive and given.get("num_speculative_tokens_per_batch_size") is not None:
        raise ConfigError(
            "adaptive and num_speculative_tokens_per_batch_size both decide how many tokens are drafted; got both. "
            "Leave one of them out."
        )
    if config.adaptive and not policy.selects and policy.speculates:
        raise ConfigError(
            f"adaptive in vLLM requires a policy that drafts over a part of the context; got policy {config.policy!r}, "
            "whose drafts never gain. Leave adaptive or the policy out."
        )
    request = policy(config).score_request
    if request is not None and request.rows == "last":
        raise ConfigError(
            "vLLM supports rows 'ends' or 'all', since acceptance is not known inside a forward pass; got 'last'. "
            "Use 'ends', or vegas_spec.LLM instead."
        )
    stock = {key: given[key] for key in given if key in VLLM_OPTIONS}
    rejection = stock.get("rejection_sample_method", "standard")
    if rejection not in REJECTION_METHODS:
        raise ConfigError(
            f"vegas supports rejection_sample_method {', '.join(REJECTION_METHODS)}; got {rejection!r}, which changes "
            "what the model says. Use 'standard' instead."
        )
    return config, falls_back, stock


def check_backend(engine_args: Any) -> None:
    """Refuse an attention backend that the user chose and that ours does not extend."""
    config = engine_args.attention_config
    chosen = {engine_args.attention_backend, getattr(config, "backend", None)} - {None}
    for backend in chosen:
        name = getattr(backend, "name", backend)
        if str(name).upper() not in (*COMPATIBLE_BACKENDS, "AUTO"):
            raise ConfigError(
                f"vegas brings its own attention backend, an extension of FLASH_ATTN; got attention backend {name}. "
                "Leave the attention backend out, or serve this backend without vegas."
            )
    if getattr(config, "backend_per_kind", None):
        raise ConfigError(
            f"vegas requires one attention backend for all layers; got backend_per_kind={config.backend_per_kind}. "
            "Leave it out: sliding-window layers keep FLASH_ATTN's own code."
        )


@contextlib.contextmanager
def told_to_vllm(engine_args: Any) -> Iterator[VegasConfig | None]:
    """While inside, the arguments say in vLLM's words what the user asked of us; then they are the user's again."""
    options = requested_options(engine_args)
    if options is None:
        yield None
        return
    if engine_args.spec_model is not None:
        options["model"] = engine_args.spec_model
    config, falls_back, stock = split_options(options)
    check_backend(engine_args)
    additional = engine_args.additional_config
    if not isinstance(additional, Mapping) or ADDITIONAL_CONFIG_KEY in additional:
        raise ConfigError(
            f"additional_config must be a mapping without the key {ADDITIONAL_CONFIG_KEY!r}, which is ours; "
            f"got {additional!r}. Options of vegas go into speculative_config."
        )
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    translated: dict[str, Any] = {"spec_method": None, "spec_tokens": None, "spec_model": None}
    if not policy_class(config.policy).speculates:
        translated["speculative_config"] = None
    else:
        translated["speculative_config"] = {
            "method": "custom_class",
            "model": SPECULATOR,
            "num_speculative_tokens": config.num_speculative_tokens,
            # At temperature 0 the kept logits cost memory only; above it, acceptance collapses without them.
            "draft_sample_method": "probabilistic",
            **stock,
        }
        ours = {"config": config.to_dict(), FALL_BACK: falls_back}
        translated["additional_config"] = {**additional, ADDITIONAL_CONFIG_KEY: ours}
        translated["attention_backend"] = AttentionBackendEnum.CUSTOM
        attention = engine_args.attention_config
        if getattr(attention, "backend", None) is not None:
            translated["attention_config"] = dataclasses.replace(attention, backend=None)
    before = {name: getattr(engine_args, name) for name in translated}
    try:
        for name, value in translated.items():
            setattr(engine_args, name, value)
        yield config
    finally:
        for name, value in before.items():
            setattr(engine_args, name, value)


def is_vegas(vllm_config: Any) -> bool:
    """Whether this engine drafts with Vegas."""
    additional = vllm_config.additional_config
    return (
        is_vegas_speculation(vllm_config.speculative_config)
        and isinstance(additional, Mapping)
        and ADDITIONAL_CONFIG_KEY in additional
    )


def is_vegas_speculation(speculative_config: Any) -> bool:
    """Whether vLLM's speculative configuration is the one that we translate to."""
    return (
        speculative_config is not None
        and speculative_config.method == "custom_class"
        and speculative_config.model == SPECULATOR
    )


def vegas_config(vllm_config: Any) -> VegasConfig:
    """The options this engine was started with."""
    return VegasConfig.from_dict(vllm_config.additional_config[ADDITIONAL_CONFIG_KEY]["config"])


def falls_back(vllm_config: Any) -> bool:
    """Whether this engine decodes plainly where drafting cannot gain."""
    return bool(vllm_config.additional_config[ADDITIONAL_CONFIG_KEY][FALL_BACK])


def is_paced(vllm_config: Any) -> bool:
    """Whether our scheduler decides how many tokens are drafted; else the number or a schedule is fixed."""
    return LENGTHS in vllm_config.additional_config[ADDITIONAL_CONFIG_KEY]


def draft_lengths(vllm_config: Any) -> list[int]:
    """How many drafts may follow a step, ascending: what graphs are captured for."""
    ours = vllm_config.additional_config[ADDITIONAL_CONFIG_KEY]
    speculative = vllm_config.speculative_config
    if LENGTHS in ours:
        return list(ours[LENGTHS])
    if not speculative.uses_dynamic_speculative_decoding():
        return [speculative.num_speculative_tokens]
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    by_batch_size = build_dynamic_sd_schedule_lookup(
        speculative.num_speculative_tokens_per_batch_size,
        vllm_max_batch_size=vllm_config.scheduler_config.max_num_seqs,
        vllm_num_speculative_tokens=speculative.num_speculative_tokens,
    )
    return sorted(set(by_batch_size[1:]))


def arrange_lengths(vllm_config: Any) -> None:
    """Settle among which lengths of draft our scheduler decides, if it is to decide.

    With a schedule by batch size vLLM expects lengths to change; the one made here names the most only, since
    `DraftScheduler` decides. A schedule of the user's stays as it is and decides alone. Ranks of data parallelism
    must agree on the length, so they always draft; and so does policy dense, which can never gain.
    """
    speculative, most = vllm_config.speculative_config, vllm_config.scheduler_config.max_num_seqs
    ours = vllm_config.additional_config[ADDITIONAL_CONFIG_KEY]
    if LENGTHS in ours:
        return
    config, gamma = vegas_config(vllm_config), speculative.num_speculative_tokens
    if (
        not policy_class(config.policy).selects
        or speculative.num_speculative_tokens_per_batch_size is not None
        or vllm_config.parallel_config.data_parallel_size > 1
    ):
        ours[FALL_BACK] = False
    elif config.adaptive or ours[FALL_BACK]:
        ours[LENGTHS] = adaptive_gammas(gamma, ours[FALL_BACK]) if config.adaptive else [0, gamma]
        speculative.num_speculative_tokens_per_batch_size = [(1, most, gamma)]
