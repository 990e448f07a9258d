"""What Vegas needs of vLLM: one table, which `vegas_spec.vllm.start.hooks` checks against the running version."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
from dataclasses import dataclass


@dataclass(frozen=True)
class Hook:
    """One thing of vLLM's that we replace, extend or call.

    Attributes
    ----------
    where : str
        ``module:attribute.path``.
    parameters : tuple of str
        Names that its signature must have; empty if it is not called by us.
    why : str
        What Vegas needs it for.

    """

    where: str
    parameters: tuple[str, ...]
    why: str

    def fault(self) -> str | None:
        """What is wrong with it in the running vLLM; None if nothing is."""
        module, _, path = self.where.partition(":")
        try:
            found = operator.attrgetter(path)(importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            return f"not found ({error})"
        if isinstance(found, property | functools.cached_property) or not self.parameters:
            return None
        missing = set(self.parameters) - set(inspect.signature(found).parameters)
        return f"has no parameter {', '.join(sorted(missing))}" if missing else None


_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"

CONFIGURATION = (
    Hook(
        "vllm.engine.arg_utils:EngineArgs.create_engine_config",
        ("self",),
        "replaced: translates the method 'vegas', checks what is supported",
    ),
    Hook("vllm.engine.arg_utils:EngineArgs.add_cli_args", ("parser",), "replaced: --spec-method vegas"),
    Hook(
        "vllm.config:VllmConfig.__post_init__",
        ("self",),
        "replaced: settles the lengths of draft",
    ),
    Hook(
        "vllm.config:VllmConfig._get_v2_model_runner_unsupported_features",
        ("self",),
        "replaced: lets our speculator into the V2 model runner",
    ),
    Hook("vllm.config:VllmConfig.num_lookahead_tokens", (), "replaced: KV slots for the drafts"),
    Hook(
        "vllm.sampling_params:SamplingParams._validate_spec_decode",
        ("self", "speculative_config"),
        "replaced: a request's wish for drafts; min_p and logit_bias",
    ),
    Hook("vllm.exceptions:VLLMValidationError", (), "raised for what a request may not ask"),
    Hook(f"{_SCHEDULER}.schedule", ("self",), "replaced: drops drafts that a request does not want"),
    Hook(
        f"{_SCHEDULER}._update_after_schedule",
        ("self", "scheduler_output"),
        "replaced: how many drafts follow a step",
    ),
    Hook(
        f"{_SCHEDULER}.make_spec_decoding_stats",
        ("self", "num_draft_tokens", "num_accepted_tokens", "request_id"),
        "replaced: sees what was accepted",
    ),
    Hook(f"{_SCHEDULER}.make_stats", ("self",), "replaced: sends our counts along"),
    Hook("vllm.v1.metrics.stats:SchedulerStats.__init__", ("running_lora_adapters",), "carries our counts"),
    Hook(
        "vllm.v1.metrics.loggers:StatLoggerManager.__init__",
        ("self", "vllm_config"),
        "replaced: our metrics beside vLLM's",
    ),
    Hook("vllm.v1.metrics.loggers:AggregateStatLoggerBase.record", ("scheduler_stats", "engine_idx"), "extended"),
    Hook(
        "vllm.v1.worker.gpu.spec_decode:init_speculator",
        ("vllm_config", "device"),
        "replaced: builds our speculator",
    ),
    Hook("vllm.v1.attention.backends.registry:register_backend", ("backend", "class_path"), "registers our attention"),
    Hook("vllm.v1.attention.backends.registry:AttentionBackendEnum.CUSTOM", (), "the name our attention goes by"),
)
"""Needed where engines are configured; checked, and where said replaced, when the plugin loads."""

_RUNNER = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator"

RUNNER = (
    Hook(
        f"{_SPECULATOR}.propose",
        (
            "input_batch",
            "num_sampled",
            "num_rejected",
            "last_sampled",
            "temperature",
            "seeds",
            "dp_sync_state",
            "dummy_run",
            "skip_attn_for_dummy_run",
            "is_profile",
            "num_speculative_tokens",
        ),
        "overridden: the draft",
    ),
    Hook(f"{_SPECULATOR}.load_draft_model", ("target_model", "target_attn_layer_names"), "overridden: draft = target"),
    Hook(
        f"{_SPECULATOR}.set_attn",
        ("model_state", "kv_cache_config", "block_tables", "target_input_buffers", "target_attn_groups"),
        "extended: metadata builders of the draft",
    ),
    Hook(
        f"{_SPECULATOR}.sample_draft",
        (
            "hidden_states",
            "sample_src_positions",
            "idx_mapping",
            "temperature",
            "seeds",
            "draft_step",
            "draft_logits",
        ),
        "called: draws the drafts and keeps their distributions",
    ),
    Hook(
        f"{_SPECULATOR}.compute_draft_logits",
        ("hidden_states", "spec_step_idx"),
        "extended: truncates the draft's logits",
    ),
    Hook(f"{_RUNNER}.load_model", ("self",), "replaced: shows the sampler's parameters to the draft"),
    Hook("vllm.v1.worker.gpu.sample.sampler:Sampler.__init__", ("vocab_size",), "its states are read"),
    Hook(
        "vllm.v1.worker.gpu.sample.states:SamplingStates.add_request",
        ("req_idx", "sampling_params"),
        "top-k, top-p, min-p",
    ),
    Hook(
        f"{_SPECULATOR}._copy_request_inputs",
        ("num_reqs", "idx_mapping", "temperature", "seeds", "dummy_run"),
        "called",
    ),
    Hook(
        f"{_SPECULATOR}._build_uniform_attn_metadata",
        ("batch_desc", "num_reqs", "num_query_per_req", "seq_lens_cpu_upper_bound", "step"),
        "called",
    ),
    Hook(f"{_SPECULATOR}._build_uniform_batch_dp_sync", ("target_dp_sync_state", "num_reqs"), "called"),
    Hook(f"{_SPECULATOR}._update_draft_decode_metadata", ("attn_metadata", "num_reqs"), "called"),
    Hook(
        "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._init_candidates",
        ("self",),
        "replaced: full graphs for every number of rows per request",
    ),
    Hook(
        "vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor.__init__",
        ("cg_mode", "num_tokens", "num_reqs", "uniform_token_count"),
        "made: those graphs",
    ),
    Hook(
        "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils:SpeculatorCudaGraphManager.capture",
        ("forward_fn", "model_state", "input_buffers", "block_tables", "attn_groups", "kv_cache_config"),
        "extended: the CUDA graphs of the draft loop",
    ),
    Hook(
        "vllm.v1.worker.gpu.dp_utils:dispatch_cg_and_sync_dp",
        ("num_reqs", "num_tokens", "uniform_token_count", "dp_size", "dp_rank", "need_eager", "dp_sync_state"),
        "called: which graph serves a batch",
    ),
    Hook(
        "vllm.v1.worker.gpu.block_table:BlockTables.compute_slot_mappings",
        ("idx_mapping", "query_start_loc", "positions", "num_tokens_padded"),
        "called: where the drafts' K/V go",
    ),
    Hook("vllm.v1.worker.gpu.attn_utils:build_slot_mappings_by_layer", ("slot_mappings", "kv_cache_config"), "called"),
    Hook(
        "vllm.v1.worker.gpu_worker:Worker.sample_tokens", ("self",), "the worker gets two methods: figures on request"
    ),
    Hook(
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model", ("self", "scheduler_output"), "timed on request"
    ),
    Hook("vllm.v1.worker.gpu.model_runner:GPUModelRunner.sample_tokens", ("self",), "timed on request"),
    Hook("vllm.v1.attention.backend:CommonAttentionMetadata.__init__", ("is_prefilling", "seq_lens"), "read"),
    Hook(
        "vllm.v1.worker.gpu.input_batch:InputBatch.__init__",
        (
            "num_reqs",
            "idx_mapping",
            "idx_mapping_np",
            "num_scheduled_tokens",
            "query_start_loc",
            "seq_lens",
            "seq_lens_cpu_upper_bound",
            "prefill_len_np",
            "num_computed_prefill_tokens_np",
            "is_prefilling_np",
        ),
        "read: which rows were accepted, and whose prompt has been read",
    ),
    Hook(
        "vllm.distributed:tensor_model_parallel_all_reduce", ("input_",), "called: sums chunks' scores over the ranks"
    ),
)
"""Needed where the model runs; checked when an engine asks for Vegas."""

CPU = (
    Hook(
        "vllm.platforms.cpu:CpuPlatform.get_attn_backend_cls",
        ("selected_backend", "attn_selector_config"),
        "replaced: our attention on a CPU, where vLLM takes no other than its own",
    ),
    Hook(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl.forward",
        ("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output"),
        "extended",
    ),
    Hook(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl.do_kv_cache_update",
        ("layer", "key", "value", "kv_cache", "slot_mapping"),
        "overridden: K/V stored in rows",
    ),
    Hook(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadataBuilder.build",
        ("common_prefix_len", "common_attn_metadata", "fast_build"),
        "extended",
    ),
)
"""Needed on a CPU."""


_FLASH = "vllm.v1.attention.backends.flash_attn"

CUDA = (
    Hook(
        f"{_FLASH}:FlashAttentionImpl.forward",
        ("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output"),
        "extended: verification and drafts",
    ),
    Hook(
        f"{_FLASH}:FlashAttentionMetadataBuilder.build",
        ("common_prefix_len", "common_attn_metadata", "fast_build"),
        "extended: which rows are scored",
    ),
    Hook(
        f"{_FLASH}:FlashAttentionMetadataBuilder.update_draft_decode_metadata",
        ("metadata",),
        "overridden: nothing to renew between draft steps",
    ),
    Hook(
        f"{_FLASH}:FlashAttentionMetadataBuilder._cudagraph_support", (), "overridden: full graphs of uniform batches"
    ),
)
"""Needed on a GPU."""
