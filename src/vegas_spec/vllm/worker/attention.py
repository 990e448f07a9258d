"""What Vegas adds to an attention backend of vLLM, the same for the CPU and the GPU: two classes to mix into its own.

A backend whose cache has K and V of a token in one row, ``[blocks, kv_heads, block_size, 2 * head_dim]`` in whatever
physical order, becomes ours by mixing `VegasMetadataBuilder` into its builder and `VegasAttention` into its attention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor

from vegas_spec.vllm.worker.draft_kv import DraftKV, LayerDraftKV, OpParams, ScoredRows

Phase = Literal["verify", "draft"]


def scored_rows(
    common: Any, gamma: int, falls_back: bool, scores: bool = True, graph_rows: Collection[int] = ()
) -> ScoredRows:
    """Which rows of a step are scored, from vLLM's description of the batch.

    An engine that falls back to plain decoding does so in steps of one row per request, which are not scored: one CUDA
    graph serves all of them. A policy that `scores` nothing wants to know only where each request's prefix ends.

    What is read on the host is there already: how many tokens each request runs, and whether they are its prompt's.
    """
    starts, seq_lens, blocks = common.query_start_loc, common.seq_lens, common.block_table_tensor
    if falls_back and common.max_query_len == 1:
        return ScoredRows(starts, seq_lens, blocks, None, scored=False)
    is_prompt = reading_prompts(common, gamma + 1)
    # Such a step may be replayed in a graph of verifications, though a prompt is in it: one whose last token follows a
    # cached context. It is laid out as the graph was captured.
    even = common.num_actual_tokens == common.num_reqs * common.max_query_len and common.max_query_len in graph_rows
    if common.max_query_len <= gamma + 1 and (even or True not in is_prompt):
        return ScoredRows(starts, seq_lens, blocks, None, scored=scores)
    bounds = common.query_start_loc_cpu.tolist()
    index: list[int] = []
    compact = [0]
    for request, prompt in enumerate(is_prompt):
        start, end = bounds[request], bounds[request + 1]
        index.extend(range(max(start, end - 1) if prompt else start, end))
        compact.append(len(index))
    compact_starts = to_device(compact, torch.int32, seq_lens.device)
    if not scores:
        return ScoredRows(compact_starts, seq_lens, blocks, None, scored=False)
    # vLLM puts decoding requests first; padding, which is no prompt either, stands at the end.
    first_prompt = is_prompt.index(True) if True in is_prompt else 0
    together = all(is_prompt[first_prompt : common.num_reqs])
    return ScoredRows(
        compact_starts,
        seq_lens,
        blocks,
        to_device(index, torch.int64, seq_lens.device),
        first_prompt=first_prompt if together else 0,
    )


def reading_prompts(common: Any, verified: int) -> list[bool]:
    """Which requests read a part of their prompt in this step, of which the last row alone is scored.

    A part of as many rows as a verification has (`verified`) is scored as one: it may be a prompt's last token, which
    vLLM has padded to that with drafts that are none, and the last row is then of no token at all.
    """
    batch, prefilling = common.seq_lens.shape[0], common.is_prefilling
    if prefilling is None or not bool(prefilling.any()):
        return [False] * batch
    known = min(batch, prefilling.shape[0])
    rows = common.query_start_loc_cpu[: known + 1].diff()
    reading: list[bool] = (prefilling[:known] & (rows != verified)).tolist()
    return reading + [False] * (batch - known)


def to_device(numbers: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy without waiting for the device: from pinned memory, which torch keeps until the copy has been made."""
    on_host = torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda")
    return on_host.to(device, non_blocking=True)


def prompts_only(common: Any, first: int) -> Any:
    """Of vLLM's description of a batch, the requests from `first` on."""
    token = int(common.query_start_loc_cpu[first])
    of_requests = ("seq_lens", "block_table_tensor", "is_prefilling", "seq_lens_cpu_upper_bound", "req_idx")
    of_tokens = ("slot_mapping", "positions")
    parts: dict[str, Any] = {}
    for names, start in ((of_requests, first), (of_tokens, token)):
        parts |= {name: getattr(common, name)[start:] for name in names if getattr(common, name, None) is not None}
    return dataclasses.replace(
        common,
        query_start_loc=common.query_start_loc[first:] - token,
        query_start_loc_cpu=common.query_start_loc_cpu[first:] - token,
        num_reqs=common.num_reqs - first,
        num_actual_tokens=common.num_actual_tokens - token,
        **parts,
    )


class VegasMetadataBuilder:
    """Adds ``phase`` and ``scored`` to the metadata that the backend's own builder makes."""

    phase: Phase = "verify"
    """The speculator sets ``draft`` on the builders that it owns."""

    draft_kv: DraftKV | None = None
    """Set by the speculator on the builders that serve verification in full-attention layers."""

    selecting: tuple[int, ...] = ()
    """Which layers of ``draft_kv`` they are."""

    falls_back: bool = False

    graph_rows: Collection[int] = ()
    """Rows per request of the steps that full CUDA graphs were captured for."""

    block_size: int

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        """See `AttentionMetadataBuilder.build`; prepares the step's scoring on the way."""
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)  # type: ignore[misc]
        metadata.phase = self.phase
        metadata.scored = None
        if self.draft_kv is not None:
            gamma = self.draft_kv.config.num_speculative_tokens
            rows = scored_rows(common_attn_metadata, gamma, self.falls_back, self.draft_kv.scores, self.graph_rows)
            self.draft_kv.prepare(rows, self.selecting, self.block_size)
            metadata.scored = rows
            if rows.first_prompt > 0:
                # Decoding requests get their output from the scored attention; the backend's own is for the prompts.
                metadata.first_prompt_token = int(common_attn_metadata.query_start_loc_cpu[rows.first_prompt])
                prompts = prompts_only(common_attn_metadata, rows.first_prompt)
                metadata.prompts = super().build(0, prompts, True)  # type: ignore[misc]
        return metadata


class VegasAttention:
    """Attention that selects as it verifies and drafts over what was selected; the rest is the backend's own."""

    vegas: LayerDraftKV | None = None
    """Set by the speculator; None where the draft reads what verification reads: sliding window, policy dense."""

    # What the backend's own attention has.
    scale: float
    logits_soft_cap: float | None
    sinks: Tensor | None

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """See `AttentionImpl.forward`. K and V of the step's tokens are in the cache already."""
        if attn_metadata is None or self.vegas is None:
            return self.dense(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        tokens = attn_metadata.num_actual_tokens
        asking, keys, values, params = self.ops_inputs(layer, query, kv_cache, output.dtype)
        if attn_metadata.phase == "draft":
            blocks, seq_lens = attn_metadata.block_table, attn_metadata.seq_lens
            self.vegas.draft(asking[:tokens], keys, values, blocks, seq_lens, params, out=output[:tokens])
            return output
        rows = attn_metadata.scored
        if not rows.scored:
            self.vegas.verified(asking[:tokens], keys, attn_metadata.slot_mapping[:tokens], params)
            return self.dense(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        if rows.index is None:
            self.vegas.verify(asking[:tokens], keys, values, rows, params, out=output[:tokens])
            return output
        scored_query = asking.index_select(0, rows.index)
        scored_out = torch.empty_like(scored_query)
        if rows.first_prompt == 0:
            self.dense(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
            self.vegas.verify(scored_query, keys, values, rows, params, out=scored_out)
            return output
        first = attn_metadata.first_prompt_token
        prompts = (query[first:], key[first:], value[first:], kv_cache, attn_metadata.prompts, output[first:])
        self.dense(layer, *prompts, *args, **kwargs)
        self.vegas.verify(scored_query, keys, values, rows, params, out=scored_out)
        # All rows of decoding requests are scored, and come first among the scored ones, too.
        output[:first] = scored_out[:first]
        return output

    def ops_inputs(
        self, layer: Any, query: Tensor, kv_cache: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, OpParams]:
        """Query, keys and values as the ops take them, and what they need to know of the layer.

        A cache in bytes is FP8 (e4m3) with one scale for keys and one for values; vLLM quantises the query for its own
        attention then, and ours takes it back to half precision. Scales stay on the device.
        """
        params = OpParams(self.scale, self.logits_soft_cap or None, self.sinks)
        if kv_cache.element_size() == 1:
            kv_cache = kv_cache.view(torch.float8_e4m3fn)
            params = dataclasses.replace(params, key_scale=layer._k_scale.view(1), value_scale=layer._v_scale.view(1))
            if query.element_size() == 1:
                query = query.to(dtype) * layer._q_scale
        keys, values = kv_cache.transpose(1, 2).chunk(2, dim=-1)
        return query, keys, values, params

    def dense(self, *args: Any, **kwargs: Any) -> Tensor:
        """The backend's own attention."""
        out: Tensor = super().forward(*args, **kwargs)  # type: ignore[misc]
        return out
