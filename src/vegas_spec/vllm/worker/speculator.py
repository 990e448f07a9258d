"""The draft: the target model itself, ``gamma`` single-token steps over the KV entries that its verification selected.

One step of vLLM's engine is ``verify -> accept -> draft``: the model runner's forward pass (our attention backend
selects as it verifies), the runner's rejection sampler, then `VegasSpeculator.propose`.

With ``S = seq_len - num_rejected``: positions ``0 .. S-1`` hold exact K/V and the newest token stands at position ``S``
without K/V. Draft step ``i`` runs the newest token or draft ``i-1`` at position ``S + i``, writes its K/V there and
sees ``S + i + 1`` positions. The next verification runs positions ``S .. S + gamma`` and overwrites all of it.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm.config import get_layers_from_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.dp_utils import dispatch_cg_and_sync_dp
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

from vegas_spec.policies import make_policy
from vegas_spec.vllm.start import banner, refusals
from vegas_spec.vllm.start.options import draft_lengths, falls_back, vegas_config
from vegas_spec.vllm.worker.draft_graphs import DraftGraphs
from vegas_spec.vllm.worker.draft_kv import DraftKV, ScoredKV, Sizes
from vegas_spec.vllm.worker.memory import memory_limits
from vegas_spec.vllm.worker.policy_kv import PolicyKV
from vegas_spec.vllm.worker.truncation import Truncation


class VegasSpeculator(DraftModelSpeculator):  # type: ignore[misc]
    """Self-drafting speculator of vLLM's V2 model runner."""

    num_query_per_req: ClassVar[int] = 1
    num_extra_query_per_req: ClassVar[int] = 0

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        # Allocates ``draft_logits``, the distributions that the rejection sampler needs, before vLLM profiles memory.
        super().__init__(vllm_config, device)
        self.config = vegas_config(vllm_config)
        self.policy = make_policy(self.config)
        # On the device, since the noise that a draft is drawn with is salted by it inside a CUDA graph.
        self.current_draft_step = torch.tensor(0, dtype=torch.int64, device=device)
        self.request_starts = torch.arange(self.max_num_reqs + 1, dtype=torch.int32, device=device)
        self.truncation: Truncation | None = None
        """Set once the runner has its sampler; see `patches.load_model`."""
        self.draft_graphs: DraftGraphs | None = None
        """A direct attribute: vLLM drops the graphs of its memory profiling from ``vars(self)``."""

    def load_draft_model(self, target_model: nn.Module, target_attn_layer_names: set[str]) -> nn.Module:
        """The target drafts for itself."""
        return target_model

    def load_model(self, target_model: nn.Module) -> None:
        """Check what only the built model tells, and give its full-attention layers their selection."""
        super().load_model(target_model)
        # Ours is the target itself: without images it takes no embeddings in the place of tokens.
        self.supports_mm_inputs = False
        self.target_layers: dict[str, Any] = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        refusals.check_layers(self.target_layers)
        self.selecting_layers: dict[str, Any] = {}
        if self.policy.selects:
            self.selecting_layers = {
                n: layer for n, layer in self.target_layers.items() if layer.sliding_window is None
            }
        refusals.check_same_shape(self.selecting_layers)
        # Here and not in `set_attn`, which runs after the memory for the KV cache has been counted.
        self.draft_kv = self.allocate_draft_kv(self.selecting_layers) if self.selecting_layers else None
        for index, layer in enumerate(self.selecting_layers.values()):
            assert self.draft_kv is not None
            layer.impl.vegas = self.draft_kv.of_layer(index)

    def allocate_draft_kv(self, layers: dict[str, Any]) -> DraftKV:
        """Allocate the selection of all full-attention layers, within a bound that the tokens in flight set."""
        layer = next(iter(layers.values()))
        limits = memory_limits(self.vllm_config, self.target_layers)
        sizes = Sizes(
            num_layers=len(layers),
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_size,
            max_requests=self.max_num_reqs,
            max_model_len=self.max_model_len,
            tokens=limits.tokens,
            max_bytes=limits.draft_kv_bytes,
            device=self.device,
        )
        if self.policy.scores:
            return ScoredKV(self.config, sizes)
        return PolicyKV(
            self.config,
            sizes,
            self.policy,
            dtype=self.dtype,
            max_tokens=self.max_num_tokens,
            over_ranks=tensor_model_parallel_all_reduce,
        )

    def set_attn(
        self,
        model_state: Any,
        kv_cache_config: Any,
        block_tables: Any,
        target_input_buffers: Any,
        target_attn_groups: list[list[Any]],
    ) -> None:
        """Build metadata builders of our own over the target's layers; called again after memory profiling."""
        # An empty set of names would leave the draft without attention metadata; a lasting one would make vLLM take the
        # target's layers for a draft model's.
        self.draft_attn_layer_names = set(self.target_layers)
        try:
            super().set_attn(model_state, kv_cache_config, block_tables, target_input_buffers, target_attn_groups)
        finally:
            self.draft_attn_layer_names = set()
        if isinstance(self.draft_kv, PolicyKV):
            # Groups of layers share one pool of blocks, whose numbers reach to the same end in each of them.
            block_size = max(group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups)
            self.draft_kv.fit(kv_cache_config.num_blocks * block_size)
        # The draft's builders are objects of their own, of the same class as the target's.
        for group in itertools.chain.from_iterable(self.attn_groups):
            for builder in group.metadata_builders:
                builder.phase = "draft"
        in_graphs = self.vllm_config.compilation_config.cudagraph_mode.has_full_cudagraphs()
        graph_rows = {length + 1 for length in draft_lengths(self.vllm_config)} if in_graphs else set()
        parts = []
        for group in itertools.chain.from_iterable(target_attn_groups):
            selecting = tuple(index for index, name in enumerate(self.selecting_layers) if name in group.layer_names)
            parts += [selecting] if selecting else []
            for builder in group.metadata_builders if selecting else ():
                builder.draft_kv = self.draft_kv
                builder.selecting = selecting
                builder.falls_back = falls_back(self.vllm_config)
                builder.graph_rows = graph_rows
        if isinstance(self.draft_kv, PolicyKV):
            self.draft_kv.divide(parts)

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """Capture the draft loop in full graphs where the target decodes in full graphs; else run it eagerly."""
        # What changes from draft step to draft step is read from tensors, so one graph holds the whole loop; where the
        # backend of vLLM needs the host between steps, the loop runs eagerly.
        full = (
            cudagraph_mode.decode_mode() == CUDAGraphMode.FULL
            and self.supports_decode_metadata_update
            and self.attn_cg_support.min_cg_support.value >= AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE.value
        )
        mode = CUDAGraphMode.FULL_DECODE_ONLY if full else CUDAGraphMode.NONE
        self.draft_graphs = DraftGraphs(self.vllm_config, self.device, mode, decode_query_len=1)
        banner.announce(
            self.config,
            self.draft_kv,
            len(self.selecting_layers),
            len(self.target_layers),
            "in one CUDA graph" if full else "without CUDA graphs",
            0 if self.draft_logits is None else self.draft_logits.nbytes,
        )

    def capture(self) -> None:
        """Record the draft loop for every batch size that has a graph."""
        self.idx_mapping.zero_()
        assert self.draft_graphs is not None
        self.draft_graphs.capture(
            self.draft_loop,
            self.model_state,
            self.input_buffers,
            self.block_tables,
            self.attn_groups,
            self.kv_cache_config,
            progress_bar_desc="Capturing draft CUDA graphs",
        )

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Any,
        temperature: Tensor,
        seeds: Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> Tensor:
        """Draft for every request of the verified batch.

        Parameters
        ----------
        input_batch : InputBatch
            vLLM's, of the step that was verified.
        attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states, next_prefill_tokens, mm_inputs
            Of that step; not used: the draft runs the whole model by metadata of its own.
        num_sampled, num_rejected : Tensor
            Tokens committed and drafts rejected, int32, shape ``[num_reqs]``; 0 committed in the middle of a prompt.
        last_sampled : Tensor
            Newest token of every request slot, int64, shape ``[max_num_reqs, 1]``.
        temperature, seeds : Tensor
            By request slot, float32 and int64, shape ``[max_num_reqs]``.
        dp_sync_state
            What ranks of data parallelism agreed on; None for one rank.
        dummy_run, skip_attn_for_dummy_run, is_profile : bool
            A run of vLLM's own: to warm up, to keep other ranks company, or to profile memory, before `set_attn`.
        num_speculative_tokens : int, optional
            Drafts that the scheduler asks for, 0 to gamma; gamma if None.

        Returns
        -------
        Tensor
            Drafts, int64, shape ``[num_reqs, gamma]``; columns from ``num_speculative_tokens`` on are ignored.

        """
        num_reqs = input_batch.num_reqs
        steps = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        if isinstance(self.draft_kv, PolicyKV) and not dummy_run:
            self.draft_kv.accepted(input_batch, num_rejected, drafting=steps > 0)
        if steps == 0:
            self.draft_tokens[:num_reqs].fill_(-1)
            return self.drafts(num_reqs)
        # Everything from here to the end of the draft is queued on the device; nothing reads a result.
        self._copy_request_inputs(num_reqs, input_batch.idx_mapping, temperature, seeds, dummy_run=dummy_run)
        if self.truncation is not None:
            self.truncation.prepare(input_batch.idx_mapping_np)
        self.prepare_first_step(input_batch, num_sampled, num_rejected, last_sampled)
        if self.draft_kv is not None:
            self.draft_kv.choose()
        # A bound that the host knows, for metadata that vLLM builds; the kernels read true lengths on the device.
        upper_bound = input_batch.seq_lens_cpu_upper_bound[:num_reqs]
        self.draft_max_seq_len = min(int(upper_bound.max()) + steps, self.max_model_len)

        if dummy_run and dp_sync_state is not None:
            num_reqs = min(num_reqs, dp_sync_state.num_reqs)
        batch_sync, num_tokens = None, num_reqs
        if dp_sync_state is not None:
            batch_sync, num_tokens = self._build_uniform_batch_dp_sync(dp_sync_state, num_reqs)
        batch, batch_sync = dispatch_cg_and_sync_dp(
            self.draft_graphs,
            num_reqs,
            num_tokens,
            uniform_token_count=1,
            dp_size=self.dp_size,
            dp_rank=self.dp_rank,
            need_eager=is_profile,
            dp_sync_state=batch_sync,
        )
        if self.draft_graphs is not None:
            batch = self.draft_graphs.specialize_spec_tokens(batch, steps)
        if batch.cg_mode == CUDAGraphMode.FULL:
            # The graph reads the kernels' block tables, which are other tensors where blocks are split for kernels.
            for group in itertools.chain.from_iterable(self.attn_groups):
                group.map_to_kernel_block_table(self.block_tables.input_block_tables[group.kv_cache_group_id])
            assert self.draft_graphs is not None
            self.draft_graphs.run_fullgraph(batch)
            return self.drafts(num_reqs)

        metadata = mappings = None
        if not (dummy_run and skip_attn_for_dummy_run):
            mappings = self.map_slots(num_reqs, batch.num_tokens)
            metadata = self._build_uniform_attn_metadata(
                batch_desc=batch,
                num_reqs=num_reqs,
                num_query_per_req=1,
                seq_lens_cpu_upper_bound=input_batch.seq_lens_cpu_upper_bound,
                step=1,
            )
        across = None if batch_sync is None else batch_sync.num_tokens_across_dp
        self.draft_loop(num_reqs, batch.num_tokens, metadata, mappings, across, CUDAGraphMode.NONE, steps)
        return self.drafts(num_reqs)

    def drafts(self, num_reqs: int) -> Tensor:
        """The drafts of a batch, ``[num_reqs, gamma]``."""
        drafts: Tensor = self.draft_tokens[:num_reqs]
        return drafts

    def prepare_first_step(
        self, input_batch: Any, num_sampled: Tensor, num_rejected: Tensor, last_sampled: Tensor
    ) -> None:
        """Write the first step's tokens, positions and lengths into the buffers that the draft loop reads.

        A request in the middle of its prompt, which has sampled nothing, runs along without a slot for its K/V; what it
        drafts is thrown away.
        """
        n, buffers = input_batch.num_reqs, self.input_buffers
        verified = input_batch.seq_lens[:n] - num_rejected[:n]
        # A negative request draws nothing and has no slot for its K/V.
        self.idx_mapping[:n].masked_fill_(num_sampled[:n] == 0, -1)
        buffers.input_ids[:n] = last_sampled.flatten()[input_batch.idx_mapping[:n]].to(torch.int32)
        # vLLM never schedules the last position, so what is clamped onto it overwrites nothing that is ever read.
        buffers.positions[:n] = verified.clamp(max=self.max_model_len - 1)
        buffers.seq_lens[:n] = (verified + 1).clamp(max=self.max_model_len)
        # Graphs run more rows than there are requests: these read nothing.
        buffers.seq_lens[n:] = 0
        torch.clamp(self.request_starts, max=n, out=buffers.query_start_loc)

    def map_slots(self, num_reqs: int, num_tokens: int) -> dict[str, Tensor]:
        """Where this step's K/V go, by layer; always the same tensors."""
        slots = self.block_tables.compute_slot_mappings(
            self.idx_mapping[:num_reqs],
            self.input_buffers.query_start_loc[: num_reqs + 1],
            self.input_buffers.positions[:num_reqs],
            num_tokens,
        )
        mappings: dict[str, Tensor] = build_slot_mappings_by_layer(slots, self.kv_cache_config)
        return mappings

    def draft_loop(
        self,
        num_reqs: int,
        num_tokens: int,
        attn_metadata: dict[str, Any] | None,
        slot_mappings: dict[str, Tensor] | None,
        num_tokens_across_dp: Tensor | None,
        cudagraph_runtime_mode: CUDAGraphMode,
        num_speculative_steps: int,
    ) -> None:
        """All draft steps; what a CUDA graph records, so nothing in it waits for the host or depends on the data."""
        buffers = self.input_buffers
        for step in range(num_speculative_steps):
            if attn_metadata is not None:
                # Into the same tensors as before the loop, from the positions that the last step advanced.
                self.map_slots(num_reqs, num_tokens)
                self._update_draft_decode_metadata(attn_metadata, num_reqs)
            self.current_draft_step.fill_(step)
            hidden = self.run_model(num_tokens, attn_metadata, slot_mappings, num_tokens_across_dp)
            tokens = self.sample_draft(
                hidden[:num_reqs],
                buffers.positions[:num_reqs],
                self.idx_mapping[:num_reqs],
                self.temperature,
                self.seeds,
                self.current_draft_step,
                self.draft_logits,
            )
            self.draft_tokens[:num_reqs, step] = tokens
            # Rows that no request fills hold whatever their memory held, and may have drawn no token at all.
            buffers.input_ids[:num_reqs] = tokens.clamp(0, self.vocab_size - 1).to(torch.int32)
            buffers.positions[:num_reqs].add_(1).clamp_(max=self.max_model_len - 1)
            # Rows that are none stay of length 0.
            lengths = buffers.seq_lens[:num_reqs]
            lengths.add_(lengths > 0).clamp_(max=self.max_model_len)

    def compute_draft_logits(self, hidden_states: Tensor, spec_step_idx: int) -> Tensor:
        """Logits to draw a draft from, which vLLM also keeps for the rejection sampler."""
        logits: Tensor = super().compute_draft_logits(hidden_states, spec_step_idx)
        if self.truncation is not None:
            self.truncation.apply(logits, self.idx_mapping[: len(logits)], self.temperature)
        return logits

    def run_model(
        self,
        num_tokens: int,
        attn_metadata: dict[str, Any] | None,
        slot_mappings: dict[str, Tensor] | None,
        num_tokens_across_dp: Tensor | None,
    ) -> Tensor:
        """One forward pass, called just as the runner calls it: the compiled model no longer checks its arguments."""
        with set_forward_context(
            attn_metadata,
            self.vllm_config,
            num_tokens=num_tokens,
            cudagraph_runtime_mode=CUDAGraphMode.NONE,
            num_tokens_across_dp=num_tokens_across_dp,
            slot_mapping=slot_mappings,
            batch_descriptor=BatchDescriptor(num_tokens=num_tokens),
        ):
            hidden: Tensor = self.model(
                input_ids=self.input_buffers.input_ids[:num_tokens],
                positions=self.input_buffers.positions[:num_tokens],
                intermediate_tensors=None,
                inputs_embeds=None,
            )
        return hidden
