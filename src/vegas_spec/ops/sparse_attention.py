"""A draft step's attention: one query row per request over listed cache slots."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from vegas_spec.ops.checks import (
    FLOATS,
    HALVES,
    check_cache,
    check_contiguous,
    check_last_dim,
    check_logit_options,
    check_scales,
    check_tensor,
    refuse,
)
from vegas_spec.ops.register import register
from vegas_spec.ops.sparse_kernel import sparse_kernel
from vegas_spec.ops.tuning import (
    MAX_COLUMNS,
    SparseTuning,
    launch_options,
    multiprocessors,
    shared_memory,
    sparse_splits,
    sparse_tuning,
)


@dataclass(frozen=True)
class SparseWorkspace:
    """Scratch of `sparse_attention`, caller-owned, shared by all layers: parts of lists that several programs read."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    multiprocessors: int
    shared_memory: int
    forced_tuning: SparseTuning | None
    partial_out: Tensor
    partial_stats: Tensor
    arrivals: Tensor

    @classmethod
    def allocate(
        cls,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_requests: int,
        device: torch.device | str,
        tuning: SparseTuning | None = None,
    ) -> SparseWorkspace:
        """Allocate for up to `max_requests` requests of layers with these heads (of one rank)."""
        device = torch.device(device)
        if num_heads % num_kv_heads or num_heads // num_kv_heads > MAX_COLUMNS:
            raise refuse("num_heads", f"1 to {MAX_COLUMNS} times num_kv_heads ({num_kv_heads})", num_heads)
        workspace = cls(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            multiprocessors=multiprocessors(device),
            shared_memory=shared_memory(device),
            forced_tuning=tuning,
            partial_out=torch.empty(0, device=device),
            partial_stats=torch.empty(0, device=device),
            arrivals=torch.zeros((max_requests * num_kv_heads,), dtype=torch.int32, device=device),
        )
        parts = max(pairs * workspace.splits(pairs) for pairs in range(1, max_requests * num_kv_heads + 1))
        columns = max(16, triton.next_power_of_2(num_heads // num_kv_heads))
        return dataclasses.replace(
            workspace,
            partial_out=torch.empty((parts, triton.next_power_of_2(head_dim), columns), device=device),
            partial_stats=torch.empty((parts, 2, columns), device=device),
        )

    def tuning(self, pairs: int) -> SparseTuning:
        """Launch configuration for the lists of `pairs` KV heads."""
        group = self.num_heads // self.num_kv_heads
        return self.forced_tuning or sparse_tuning(
            group, self.head_dim, self.shared_memory, pairs, self.multiprocessors
        )

    def splits(self, pairs: int) -> int:
        """Into how many parts each of the lists of `pairs` KV heads is cut."""
        return sparse_splits(pairs, self.multiprocessors, self.tuning(pairs))


def sparse_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    counts: Tensor,
    prefix_lens: Tensor,
    seq_lens: Tensor,
    workspace: SparseWorkspace,
    *,
    out: Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    validate: bool = True,
) -> Tensor:
    """Attend from one query row per request to the first entries of its list.

    With ``L[b] = min(counts[b], prefix_lens[b]) + seq_lens[b] - prefix_lens[b]``, cut at the list width, and ``S`` the
    first ``L[b]`` slots of ``slots[b, g]``, ``g`` being the query head's KV head (or 0 where ``slots`` has one group),

    ``out[b, h] = sum_{s in S} exp(l[s] - lse) * v[s]``, ``l[s] = scale * <query[b, h], k[s]>``, soft-capped when asked,
    ``lse = log(sum_{s in S} exp(l[s]) + exp(sinks[h]))``

    `select_kv` with a ``tail`` writes such lists; a draft then only advances ``seq_lens`` from step to step.

    Parameters
    ----------
    query : Tensor
        bfloat16 or float16, shape ``[batch, heads, head_dim]``, last dimension contiguous.
    key_cache, value_cache : Tensor
        As in `verify_attention`; slot ``s`` is ``[s // block_size, s % block_size]``.
    slots : Tensor
        int32, contiguous, shape ``[batch, kv_heads or 1, width]``.
    counts, prefix_lens, seq_lens : Tensor
        int32, shape ``[batch]`` (the first two may be longer). ``seq_lens`` counts the query's own token, whose key and
        value are in the cache already. A request whose ``prefix_lens`` or ``seq_lens`` is 0 is padding: its output is
        left alone.
    workspace : SparseWorkspace
        Not used by another stream at the same time.
    out : Tensor
        Written; like `query`, must not overlap it.
    scale, softcap, sinks, key_scale, value_scale, validate
        As in `verify_attention`.

    Returns
    -------
    Tensor
        `out`.

    Notes
    -----
    Safe in CUDA graphs; two calls with the same inputs give the same bits. Not checked: the values of the integer
    tensors. On a CPU the plain-torch `reference` runs.

    Examples
    --------
    A draft's step at length 30, whose prefix was 28: it reads the 2 positions selected and the 2 tokens since.

    >>> import torch
    >>> from vegas_spec.ops import SparseWorkspace, sparse_attention
    >>> query, (key_cache, value_cache) = torch.randn(1, 4, 8), torch.randn(2, 5, 16, 2, 8)
    >>> slots = torch.tensor([[[3, 50, 28, 29, 30], [7, 51, 28, 29, 30]]], dtype=torch.int32)
    >>> counts, prefix_lens, seq_lens = torch.tensor([[2], [28], [30]], dtype=torch.int32)
    >>> workspace = SparseWorkspace.allocate(num_heads=4, num_kv_heads=2, head_dim=8, max_requests=1, device="cpu")
    >>> out = sparse_attention(
    ...     query, key_cache, value_cache, slots, counts, prefix_lens, seq_lens, workspace,
    ...     out=torch.empty_like(query), scale=8**-0.5,
    ... )

    The fourth head reads what is listed for the second KV head:

    >>> keys, values = (cache.flatten(0, 1)[[7, 51, 28, 29], 1] for cache in (key_cache, value_cache))
    >>> torch.allclose(out[0, 3], (8**-0.5 * keys @ query[0, 3]).softmax(0) @ values, atol=1e-5)
    True

    """
    if validate:
        (batch, heads, head_dim), device = query.shape, query.device
        dtypes = HALVES if device.type == "cuda" else FLOATS
        shape = (None, workspace.num_heads, workspace.head_dim)
        check_tensor("query", query, shape, dtypes, workspace.arrivals.device)
        check_last_dim("query", query)
        check_cache(key_cache, value_cache, workspace.num_kv_heads, head_dim, query)
        kv_heads = workspace.num_kv_heads
        if batch * kv_heads > workspace.arrivals.shape[0]:
            raise refuse("query", f"of at most {workspace.arrivals.shape[0] // kv_heads} requests", batch)
        if slots.dim() != 3 or slots.shape[1] not in (1, kv_heads):
            raise refuse("slots", f"of shape [{batch}, 1 or {kv_heads}, any]", list(slots.shape))
        check_tensor("slots", slots, (batch, None, None), (torch.int32,), device)
        check_contiguous("slots", slots)
        check_tensor("seq_lens", seq_lens, (batch,), (torch.int32,), device)
        for name, tensor in (("counts", counts), ("prefix_lens", prefix_lens)):
            check_tensor(name, tensor[:batch], (batch,), (torch.int32,), device)
            check_contiguous(name, tensor)
        check_tensor("out", out, query.shape, (query.dtype,), device)
        check_last_dim("out", out)
        check_logit_options(softcap, sinks, heads, device)
        check_scales(key_scale, value_scale, device)
    pairs = query.shape[0] * workspace.num_kv_heads
    tuning = workspace.tuning(pairs)
    torch.ops.vegas_spec.sparse_attention(
        query, key_cache, value_cache, slots, counts, prefix_lens, seq_lens, sinks, key_scale, value_scale,
        out, workspace.partial_out, workspace.partial_stats, workspace.arrivals, scale, softcap or 0.0,
        workspace.splits(pairs), tuning.tile, tuning.stages, tuning.warps,
    )  # fmt: skip
    return out


def launch(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    counts: Tensor,
    prefix_lens: Tensor,
    seq_lens: Tensor,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    out: Tensor,
    partial_out: Tensor,
    partial_stats: Tensor,
    arrivals: Tensor,
    scale: float,
    softcap: float,
    splits: int,
    tile: int,
    stages: int,
    warps: int,
) -> None:
    """Run the Triton kernel."""
    batch, heads, head_dim = query.shape
    _, block_size, kv_heads, _ = key_cache.shape
    unused = seq_lens
    sparse_kernel[(batch * kv_heads * splits,)](
        out, query, key_cache, value_cache, slots, counts, prefix_lens, seq_lens,
        unused if sinks is None else sinks,
        unused if key_scale is None else key_scale,
        unused if value_scale is None else value_scale,
        partial_out, partial_stats, arrivals, scale, softcap * math.log2(math.e), slots.shape[2], block_size,
        out.stride(0), out.stride(1), query.stride(0), query.stride(1),
        *key_cache.stride()[:3], *value_cache.stride()[:3],
        KV_HEADS=kv_heads,
        GROUPS=slots.shape[1],
        GROUP=heads // kv_heads,
        COLUMNS=partial_out.shape[2],
        HEAD_DIM=head_dim,
        DIM=partial_out.shape[1],
        TILE=tile,
        BLOCK_SIZE=block_size if block_size & (block_size - 1) == 0 else 0,
        SPLITS=splits,
        SAME_STRIDES=key_cache.stride() == value_cache.stride(),
        SOFTCAP=softcap > 0,
        SINKS=sinks is not None,
        KEY_SCALE=key_scale is not None,
        VALUE_SCALE=value_scale is not None,
        ONLINE=query.dtype == torch.float16,
        LIMIT=2.0**90,
        STAGES=stages,
        num_warps=warps,
        **launch_options(query.device),
    )  # fmt: skip


def reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    counts: Tensor,
    prefix_lens: Tensor,
    seq_lens: Tensor,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    out: Tensor,
    partial_out: Tensor,
    partial_stats: Tensor,
    arrivals: Tensor,
    scale: float,
    softcap: float,
    splits: int,
    tile: int,
    stages: int,
    warps: int,
) -> None:
    """Do the same in plain torch, in float32 (float64 for a float64 query), one request after another."""
    heads, (_, block_size, kv_heads, _) = query.shape[1], key_cache.shape
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    head = torch.arange(kv_heads, device=query.device)
    for request, (count, prefix, seq_len) in enumerate(
        zip(counts.tolist(), prefix_lens.tolist(), seq_lens.tolist(), strict=False)
    ):
        if prefix == 0 or seq_len == 0:
            continue
        listed = slots[request, :, : min(count, prefix) + seq_len - prefix].long().expand(kv_heads, -1)
        block, place = listed // block_size, listed % block_size
        key = key_cache[block, place, head[:, None]].to(dtype) * (1.0 if key_scale is None else key_scale)
        value = value_cache[block, place, head[:, None]].to(dtype) * (1.0 if value_scale is None else value_scale)
        rows = query[request].to(dtype).view(kv_heads, heads // kv_heads, -1)
        logits = scale * rows @ key.transpose(1, 2)
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        total = logits.logsumexp(-1, keepdim=True)
        if sinks is not None:
            total = torch.logaddexp(total, sinks.to(dtype).view(kv_heads, -1, 1))
        out[request] = ((logits - total).exp() @ value).view(heads, -1).to(out.dtype)


register("sparse_attention", launch, reference, mutates=("out", "partial_out", "partial_stats", "arrivals"))
