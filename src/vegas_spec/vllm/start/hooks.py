"""What Vegas needs of vLLM: one table, by which the running version is checked and what is replaced is installed.

A release of vLLM that lacks something is found out by name and parameter names when the plugin loads, or when an engine
asks for Vegas; ``vegas doctor`` lists all of it.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from vegas_spec.environment import pip_install

Status = Literal["PASS", "WARN", "FAIL"]
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]

TESTED_VERSIONS = ("0.32", "0.33")


@dataclass(frozen=True)
class Hook:
    """One thing of vLLM's that we replace, extend, call or read.

    Attributes
    ----------
    where : str
        ``module:attribute.path``.
    does : str
        ``replaced``: `by` stands in its place, and runs vLLM's own code unless Vegas is asked for. ``extended`` and
        ``overridden``: in a subclass of ours, with and without vLLM's own code. ``called``, ``read`` and ``made`` (set,
        or an object of it is): by code of ours. ``timed``: by `vegas bench`.
    why : str
        What Vegas needs it for.
    parameters : str
        Names that its signature must have, between spaces; empty if we do not call it.
    by : str
        Where the function is that makes ours from vLLM's.
    until : str
        What in vLLM would make the replacement needless, and where it is asked for, if it is known to be.

    """

    where: str
    does: Literal["replaced", "extended", "overridden", "called", "read", "made", "timed"]
    why: str
    parameters: str = ""
    by: str = ""
    until: str = ""

    def fault(self) -> str | None:
        """What is wrong with it in the running vLLM; None if nothing is."""
        try:
            found = pkgutil.resolve_name(self.where)
        except (ImportError, AttributeError) as error:
            return f"not found ({error})"
        if isinstance(found, property | functools.cached_property) or not self.parameters:
            return None
        missing = set(self.parameters.split()) - set(inspect.signature(found).parameters)
        return f"has no parameter {', '.join(sorted(missing))}" if missing else None

    def install(self) -> None:
        """Put ours in its place."""
        module, _, path = self.where.partition(":")
        parent, _, name = path.rpartition(".")
        replace(pkgutil.resolve_name(f"{module}:{parent}" if parent else module), name, pkgutil.resolve_name(self.by))


_MARK = "_vegas_original"


def replace(owner: Any, name: str, wrap: Wrapper) -> None:
    """Put ``wrap(original)`` in the place of a function, method or property; a second time is no time."""
    current = vars(owner)[name]
    original = getattr(current, "__func__", None) or getattr(current, "fget", None) or current
    if hasattr(original, _MARK):
        return
    wrapped = functools.wraps(original)(wrap(original))
    setattr(wrapped, _MARK, original)
    kind = type(current)
    setattr(owner, name, kind(wrapped) if kind in (staticmethod, classmethod, property) else wrapped)


def install(hooks: Iterable[Hook]) -> None:
    """Install every replacement among `hooks`."""
    for hook in hooks:
        if hook.by:
            hook.install()


def platform_hooks() -> tuple[Hook, ...]:
    """The hooks of the platform that vLLM runs on here, beyond those that every platform needs."""
    from vllm.platforms import current_platform

    platform: Any = current_platform
    return CPU if platform.is_cpu() else CUDA


def faults(hooks: Iterable[Hook]) -> list[str]:
    """What the running vLLM lacks of `hooks`, one line each."""
    found = ((hook, hook.fault()) for hook in hooks)
    return [f"{hook.where} {fault} ({hook.does}: {hook.why})" for hook, fault in found if fault]


def mismatch_message(lines: list[str]) -> str:
    """One message that says what is missing and what to do."""
    import vllm

    return (
        f"vegas does not fit vLLM {vllm.__version__}: {'; '.join(lines)}. "
        f"Tested with vLLM {', '.join(TESTED_VERSIONS)}: install one of these, or serve without vegas."
    )


def check_hooks() -> list[tuple[str, Status, str]]:
    """Every hook as ``(name, status, detail)``, and the version first: for ``vegas doctor``."""
    try:
        import vllm
    except ImportError as error:
        return [("vllm", "FAIL", f"not installed ({error}); run: {pip_install('vllm')}")]
    version, tested = vllm.__version__, vllm.__version__.startswith(TESTED_VERSIONS)
    checks: list[tuple[str, Status, str]] = [
        ("vllm version", "PASS", version)
        if tested
        else ("vllm version", "WARN", f"{version}; tested with {', '.join(TESTED_VERSIONS)}")
    ]
    for hook in (*CONFIGURATION, *RUNNER, *platform_hooks()):
        fault = hook.fault()
        checks.append((hook.where, "FAIL" if fault else "PASS", fault or f"{hook.does}: {hook.why}"))
    return checks


_PATCHES = "vegas_spec.vllm.start.patches"
_SCHEDULER_PATCHES = "vegas_spec.vllm.scheduler.patches"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_LOGGERS = "vllm.v1.metrics.loggers"
_BACKENDS = "vllm.v1.attention.backends"
_V2 = "vllm.v1.worker.gpu"

_OWN_METHOD = "a plugin can bring a speculative method with options of its own (vllm-project/vllm#36219)"
_SPECULATORS = "the V2 runner takes custom speculators (vllm-project/vllm#36219)"
_LENGTHS = "the number of drafts can be decided step by step, by more than the size of the batch"

CONFIGURATION = (
    Hook(
        "vllm.engine.arg_utils:EngineArgs.create_engine_config",
        "replaced",
        "translates the method 'vegas', checks what is supported",
        "self",
        by=f"{_PATCHES}:create_engine_config",
        until=_OWN_METHOD,
    ),
    Hook(
        "vllm.engine.arg_utils:EngineArgs.add_cli_args",
        "replaced",
        "--spec-method vegas",
        "parser",
        by=f"{_PATCHES}:add_cli_args",
        until=_OWN_METHOD,
    ),
    Hook(
        "vllm.config:VllmConfig.__post_init__",
        "replaced",
        "settles the lengths of draft",
        "self",
        by=f"{_PATCHES}:post_init",
        until="a speculator can say which lengths of draft it will use",
    ),
    Hook(
        "vllm.config:VllmConfig._get_v2_model_runner_unsupported_features",
        "replaced",
        "lets our speculator into the V2 model runner",
        "self",
        by=f"{_PATCHES}:unsupported_features",
        until=_SPECULATORS,
    ),
    Hook(
        "vllm.config:VllmConfig.num_lookahead_tokens",
        "replaced",
        "KV slots for the drafts",
        by=f"{_PATCHES}:num_lookahead_tokens",
        until="a custom speculator can say how many slots it writes",
    ),
    Hook(
        "vllm.sampling_params:SamplingParams._validate_spec_decode",
        "replaced",
        "a request's wish for drafts; min_p and logit_bias",
        "self speculative_config",
        by=f"{_SCHEDULER_PATCHES}:validate_request",
        until="a request can say whether it wants drafts; both are taken with drafts (vllm-project/vllm#42744)",
    ),
    Hook("vllm.exceptions:VLLMValidationError", "made", "for what a request may not ask"),
    Hook(
        f"{_SCHEDULER}.schedule",
        "replaced",
        "drops drafts that a request does not want",
        "self",
        by=f"{_SCHEDULER_PATCHES}:schedule",
        until="a request can say whether it wants drafts",
    ),
    Hook(
        f"{_SCHEDULER}._update_after_schedule",
        "replaced",
        "how many drafts follow a step",
        "self scheduler_output",
        by=f"{_SCHEDULER_PATCHES}:update_after_schedule",
        until=_LENGTHS,
    ),
    Hook(
        f"{_SCHEDULER}.make_spec_decoding_stats",
        "replaced",
        "sees what was accepted",
        "self num_draft_tokens num_accepted_tokens request_id",
        by=f"{_SCHEDULER_PATCHES}:spec_decoding_stats",
        until=_LENGTHS,
    ),
    Hook(
        f"{_SCHEDULER}.make_stats",
        "replaced",
        "sends our counts along",
        "self",
        by=f"{_SCHEDULER_PATCHES}:make_stats",
        until="SchedulerStats has room for the counts of a plugin",
    ),
    Hook("vllm.v1.metrics.stats:SchedulerStats.__init__", "read", "carries our counts", "running_lora_adapters"),
    Hook(
        f"{_LOGGERS}:StatLoggerManager.__init__",
        "replaced",
        "our metrics beside vLLM's",
        "self vllm_config",
        by=f"{_SCHEDULER_PATCHES}:stat_loggers",
        until="a plugin can bring a logger of its own to the engines that ask for it",
    ),
    Hook(f"{_LOGGERS}:AggregateStatLoggerBase.record", "extended", "our metrics", "scheduler_stats engine_idx"),
    Hook(
        f"{_V2}.spec_decode:init_speculator",
        "replaced",
        "builds our speculator",
        "vllm_config device",
        by=f"{_PATCHES}:init_speculator",
        until=_SPECULATORS,
    ),
    Hook(f"{_BACKENDS}.registry:register_backend", "called", "registers our attention", "backend class_path"),
    Hook(f"{_BACKENDS}.registry:AttentionBackendEnum.CUSTOM", "read", "the name our attention goes by"),
)
"""Needed where engines are configured; checked, and where said replaced, when the plugin loads."""

_RUNNER = f"{_V2}.model_runner:GPUModelRunner"
_SPECULATOR = f"{_V2}.spec_decode.speculator:DraftModelSpeculator"
_GRAPHS = f"{_V2}.cudagraph_utils"
_DRAFTS = f"{_V2}.spec_decode.target_dependent_ar.cudagraph_utils:Speculator"

RUNNER = (
    Hook(
        f"{_SPECULATOR}.propose",
        "overridden",
        "the draft",
        "input_batch num_sampled num_rejected last_sampled temperature seeds dp_sync_state dummy_run "
        "skip_attn_for_dummy_run is_profile num_speculative_tokens",
    ),
    Hook(f"{_SPECULATOR}.load_draft_model", "overridden", "draft = target", "target_model target_attn_layer_names"),
    Hook(
        f"{_SPECULATOR}.set_attn",
        "extended",
        "metadata builders of the draft",
        "model_state kv_cache_config block_tables target_input_buffers target_attn_groups",
    ),
    Hook(
        f"{_SPECULATOR}.sample_draft",
        "called",
        "draws the drafts and keeps their distributions",
        "hidden_states sample_src_positions idx_mapping temperature seeds draft_step draft_logits",
    ),
    Hook(f"{_SPECULATOR}.compute_draft_logits", "extended", "truncates them", "hidden_states spec_step_idx"),
    Hook(
        f"{_RUNNER}.load_model",
        "replaced",
        "shows the sampler's parameters to the draft",
        "self",
        by=f"{_PATCHES}:load_model",
        until="a speculator is given top-k, top-p and min-p beside the temperature",
    ),
    Hook(f"{_GRAPHS}:CudaGraphManager.run_fullgraph", "called", "replays the draft loop", "desc"),
    Hook(f"{_DRAFTS}CudaGraphManager.specialize_spec_tokens", "called", "by length", "num_speculative_tokens"),
    Hook(f"{_DRAFTS}BatchDescriptor.__init__", "made", "a graph by length", "num_speculative_tokens"),
    Hook("vllm.forward_context:set_forward_context", "called", "a step", "attn_metadata num_tokens slot_mapping"),
    Hook("vllm.config:get_layers_from_vllm_config", "called", "the target's layers", "vllm_config layer_type"),
    Hook("vllm.v1.core.sched.output:SchedulerOutput.num_spec_tokens_to_schedule", "made", "how many drafts follow"),
    Hook("vllm.config:SpeculativeConfig.uses_dynamic_speculative_decoding", "called", "whether lengths change", "self"),
    Hook("vllm.v1.worker.utils:AttentionGroup.map_to_kernel_block_table", "called", "the kernels' blocks"),
    Hook("vllm.v1.spec_decode.dynamic.utils:build_dynamic_sd_schedule_lookup", "called", "the user's schedule"),
    Hook(f"{_V2}.sample.sampler:Sampler.__init__", "read", "its states", "vocab_size"),
    Hook(f"{_V2}.sample.states:SamplingStates.add_request", "read", "top-k, top-p, min-p", "req_idx sampling_params"),
    Hook(
        f"{_SPECULATOR}._copy_request_inputs",
        "called",
        "a request's state beside its drafts",
        "num_reqs idx_mapping temperature seeds dummy_run",
    ),
    Hook(
        f"{_SPECULATOR}._build_uniform_attn_metadata",
        "called",
        "what attention is told of a draft step",
        "batch_desc num_reqs num_query_per_req seq_lens_cpu_upper_bound step",
    ),
    Hook(f"{_SPECULATOR}._build_uniform_batch_dp_sync", "called", "ranks in step", "target_dp_sync_state num_reqs"),
    Hook(f"{_SPECULATOR}._update_draft_decode_metadata", "called", "from step to step", "attn_metadata num_reqs"),
    Hook(
        f"{_GRAPHS}:CudaGraphManager._init_candidates",
        "replaced",
        "full graphs for every number of rows per request",
        "self",
        by="vegas_spec.vllm.worker.decode_graphs:init_candidates",
        until="vLLM captures a full graph for every length of draft that is announced",
    ),
    Hook(
        f"{_GRAPHS}:BatchExecutionDescriptor.__init__",
        "made",
        "those",
        "cg_mode num_tokens num_reqs uniform_token_count",
    ),
    Hook(
        f"{_DRAFTS}CudaGraphManager.capture",
        "extended",
        "graphs of the draft loop",
        "forward_fn model_state input_buffers block_tables attn_groups kv_cache_config",
    ),
    Hook(
        f"{_V2}.dp_utils:dispatch_cg_and_sync_dp",
        "called",
        "which graph serves a batch",
        "num_reqs num_tokens uniform_token_count dp_size dp_rank need_eager dp_sync_state",
    ),
    Hook(
        f"{_V2}.block_table:BlockTables.compute_slot_mappings",
        "called",
        "where the drafts' K/V go",
        "idx_mapping query_start_loc positions num_tokens_padded",
    ),
    Hook(f"{_V2}.attn_utils:build_slot_mappings_by_layer", "called", "by layer", "slot_mappings kv_cache_config"),
    Hook("vllm.v1.worker.gpu_worker:Worker.sample_tokens", "timed", "on request, by two methods of ours", "self"),
    Hook(f"{_RUNNER}.execute_model", "timed", "on request", "self scheduler_output"),
    Hook(f"{_RUNNER}.sample_tokens", "timed", "on request", "self"),
    Hook(
        "vllm.v1.attention.backend:CommonAttentionMetadata.__init__",
        "read",
        "lengths, and whose prompt is being read",
        "is_prefilling seq_lens",
    ),
    Hook(
        f"{_V2}.input_batch:InputBatch.__init__",
        "read",
        "which rows were accepted, and whose prompt has been read",
        "num_reqs idx_mapping idx_mapping_np num_scheduled_tokens query_start_loc seq_lens seq_lens_cpu_upper_bound "
        "prefill_len_np num_computed_prefill_tokens_np is_prefilling_np",
    ),
    Hook("vllm.distributed:tensor_model_parallel_all_reduce", "called", "sums chunks' scores over the ranks", "input_"),
)
"""Needed where the model runs; checked when an engine asks for Vegas, replaced when its speculator is built."""

_ATTENTION = "layer query key value kv_cache attn_metadata output"
_METADATA = "common_prefix_len common_attn_metadata fast_build"
_ON_CPU = f"{_BACKENDS}.cpu_attn"
_FLASH = f"{_BACKENDS}.flash_attn"

CPU = (
    Hook(
        "vllm.platforms.cpu:CpuPlatform.get_attn_backend_cls",
        "replaced",
        "our attention on a CPU, where vLLM takes no other than its own",
        "selected_backend attn_selector_config",
        by=f"{_PATCHES}:cpu_backend",
        until="the CPU platform takes a registered backend",
    ),
    Hook(f"{_ON_CPU}:CPUAttentionBackendImpl.forward", "extended", "verification and drafts", _ATTENTION),
    Hook(
        f"{_ON_CPU}:CPUAttentionBackendImpl.do_kv_cache_update",
        "overridden",
        "K/V stored in rows",
        "layer key value kv_cache slot_mapping",
    ),
    Hook(f"{_ON_CPU}:CPUAttentionMetadataBuilder.build", "extended", "which rows are scored", _METADATA),
)
"""Needed on a CPU."""

CUDA = (
    Hook(f"{_FLASH}:FlashAttentionImpl.forward", "extended", "verification and drafts", _ATTENTION),
    Hook(f"{_FLASH}:FlashAttentionMetadataBuilder.build", "extended", "which rows are scored", _METADATA),
    Hook(
        f"{_FLASH}:FlashAttentionMetadataBuilder.update_draft_decode_metadata",
        "overridden",
        "nothing to renew between draft steps",
        "metadata",
    ),
    Hook(f"{_FLASH}:FlashAttentionMetadataBuilder._cudagraph_support", "overridden", "graphs of uniform batches"),
)
"""Needed on a GPU."""
