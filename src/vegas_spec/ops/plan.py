"""The schedule of a batch's verification and the scratch that all layers share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from vegas_spec.config import Granularity
from vegas_spec.ops import record
from vegas_spec.ops.checks import check_choice, check_contiguous, check_tensor, refuse
from vegas_spec.ops.levels import LEVELS, SCORE_ALIGNMENT
from vegas_spec.ops.plan_kernel import RECORDS, plan_kernel
from vegas_spec.ops.tuning import MAX_COLUMNS, SELECT, VerifyTuning, multiprocessors, shared_memory, verify_tuning

ALIGNMENT_SLACK = 8
"""Percent of programs' time given up, at most, for shares that end where heads end: less than the 10 to 14 % that they
bring (docs/kernels.md)."""

MOST_PARTS = 32
"""Programs that rank, and then select for, one request and group at most: each sums the histograms of all. Chosen by
hand."""


@dataclass(frozen=True)
class VerifyPlan:
    """What `verify_attention` and `select_kv` need beside their inputs; caller-owned, one for all layers of a kind.

    `prepare` runs once per step; every layer of the step then uses the same plan. All tensors keep their addresses, so
    a CUDA graph may contain `prepare`, or read what an earlier call of it has written.

    The attention of a step is a list of tiles of ``tile`` keys, ordered by request, KV head and position; each of
    ``num_programs`` programs takes an equal, contiguous share of it, whatever the lengths are. Where the lengths allow
    it, shares end where heads (or equal parts of heads) end, and a program that has several heads takes them from
    different requests: then the programs walk through the heads of a request side by side, and the memory sees whole
    tokens. The lengths are read on the device only.

    Attributes
    ----------
    tile_starts : Tensor
        Tiles (per KV head) before each request, int32, shape ``[max_requests + 1]``.
    programs : Tensor
        Where each program's share begins and what it needs to know of that request, one record each; int32, shape
        ``[num_programs, record.LENGTH]``, fields in `vegas_spec.ops.record`.
    prefix_lens : Tensor
        ``n = seq_len - query_len + 1``, 0 for a padding row, int32, shape ``[max_requests]``.
    score_offsets : Tensor
        Where a request's scores begin in ``levels``, int32, shape ``[max_requests]``; -1: there was no room, and its
        draft reads the first and the latest positions.
    dropped : Tensor
        Requests that found no room, summed over all calls of `prepare`, int32, shape ``[1]``.
    levels : Tensor
        Score levels of every prefix position, int16, shape ``[num_kv_heads, score_capacity]``.
    histogram : Tensor
        How often each level occurs in each part, int32, shape ``[slots, LEVELS]``. A part is what one program scores of
        one request's head (or, if `ranked`, one of a request's and group's `parts`). Written anew by every scoring.
    ranks : Tensor
        What positions are selected by if `ranked`, as levels: heads summed, scores flowed forward; int16, shape
        ``[groups, score_capacity]``, else empty. Written by `select_kv`.
    partial_out, partial_stats, arrivals : Tensor
        Output of requests that more than one program worked on, by part, and how many parts have been written. Part
        ``i`` of pair ``request * num_kv_heads + head`` has slot ``first program + i + pair``, or ``pair`` if programs
        have whole heads.

    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_query_len: int
    window: int | None
    lookahead: float
    tuning: VerifyTuning
    num_programs: int
    tile_starts: Tensor
    programs: Tensor
    prefix_lens: Tensor
    score_offsets: Tensor
    dropped: Tensor
    levels: Tensor
    histogram: Tensor
    ranks: Tensor
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
        max_query_len: int,
        max_requests: int,
        score_capacity: int,
        device: torch.device | str,
        window: int | None = None,
        granularity: Granularity = "kv_head",
        lookahead: float = 0.0,
        tuning: VerifyTuning | None = None,
    ) -> VerifyPlan:
        """Allocate the plan of all layers with these heads and this sliding window.

        Parameters
        ----------
        num_heads, num_kv_heads, head_dim : int
            Of one layer (of one rank, under tensor parallelism).
        max_query_len : int
            Most query rows per request, ``gamma + 1``; times the group size at most 128.
        max_requests : int
            Most requests per step, padding rows included.
        score_capacity : int
            Prefix tokens for which there is room to score, over all requests of a step. 0: nothing is ever scored.
        device : torch.device or str
            Where the ops run.
        window : int, optional
            Sliding window of the layers, in tokens, the row itself included. Such layers are never scored: their draft
            reads the window, as `verify_attention` with one row per request does.
        granularity : {"kv_head", "layer"}
            Whether each KV head selects for itself or all of them together.
        lookahead : float
            Decay ``d`` in [0, 1) by which scores flow to the keys that follow before positions are ranked; defined by
            `vegas_spec.selection.look_ahead`, here with a decay of whole levels (`vegas_spec.ops.levels.decay_levels`).
        tuning : VerifyTuning, optional
            Launch configuration; by default the measured one of `vegas_spec.ops.tuning`.

        """
        device = torch.device(device)
        if num_heads % num_kv_heads:
            raise refuse("num_heads", f"a multiple of num_kv_heads ({num_kv_heads})", num_heads)
        check_choice("granularity", granularity, ("kv_head", "layer"))
        if not 0 <= lookahead < 1:
            raise refuse("lookahead", "from 0 to below 1", lookahead)
        if window is not None and (window < 1 or score_capacity):
            raise refuse("window", "None, or at least 1 and without score_capacity", window)
        columns = max_query_len * (num_heads // num_kv_heads)
        if columns > MAX_COLUMNS:
            raise refuse("max_query_len * num_heads / num_kv_heads", f"at most {MAX_COLUMNS}", columns)
        if score_capacity % SCORE_ALIGNMENT:
            score_capacity += SCORE_ALIGNMENT - score_capacity % SCORE_ALIGNMENT
        tuning = tuning or verify_tuning(columns, head_dim, shared_memory(device))
        num_programs = multiprocessors(device) * tuning.programs_per_multiprocessor
        pairs = max_requests * num_kv_heads
        parts = num_programs + pairs
        groups = num_kv_heads if granularity == "kv_head" else 1
        ranked = groups != num_kv_heads or lookahead > 0
        lists = max_requests * groups
        counted = lists + min(lists * MOST_PARTS, SELECT.programs(device)) if ranked else parts

        # Products of `tl.dot` have no side below 16, and blocks are powers of two: hence both in the scratch's shapes.
        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        return cls(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_query_len=max_query_len,
            window=window,
            lookahead=lookahead,
            tuning=tuning,
            num_programs=num_programs,
            tile_starts=ints(max_requests + 1),
            programs=ints(num_programs, record.LENGTH.value),
            prefix_lens=ints(max_requests),
            score_offsets=ints(max_requests),
            dropped=ints(1),
            levels=torch.zeros((num_kv_heads, score_capacity), dtype=torch.int16, device=device),
            histogram=ints(counted if score_capacity else 0, LEVELS),
            ranks=torch.zeros((groups, score_capacity if ranked else 0), dtype=torch.int16, device=device),
            partial_out=floats(parts, triton.next_power_of_2(head_dim), triton.next_power_of_2(max(columns, 16))),
            partial_stats=floats(parts, 2, triton.next_power_of_2(max(columns, 16))),
            arrivals=ints(pairs),
        )

    @property
    def max_requests(self) -> int:
        """Most requests per step."""
        return self.prefix_lens.shape[0]

    @property
    def score_capacity(self) -> int:
        """Prefix tokens for which there is room to score."""
        return self.levels.shape[1]

    @property
    def groups(self) -> int:
        """Sets of positions per request: one per KV head, or one."""
        return self.ranks.shape[0]

    @property
    def ranked(self) -> bool:
        """Whether positions are selected by something else than each head's own scores."""
        return self.ranks.shape[1] > 0

    def parts(self, batch: int) -> int:
        """Programs that select for each request and group if `ranked`, of a batch of so many, padding included."""
        return min(MOST_PARTS, -(-SELECT.programs(self.levels.device) // max(batch * self.groups, 1)))

    def scratch_bytes(self) -> dict[str, int]:
        """Device memory of the plan by purpose: what grows with scored tokens, with requests, and with the device."""

        def size(*tensors: Tensor) -> int:
            return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

        return {
            "levels": size(self.levels, self.ranks),
            "histogram": size(self.histogram),
            "schedule": size(self.tile_starts, self.programs, self.prefix_lens, self.score_offsets, self.arrivals),
            "partials": size(self.partial_out, self.partial_stats),
        }

    def prepare(self, query_start_loc: Tensor, seq_lens: Tensor) -> None:
        """Lay out this step's work and score scratch; reads the lengths on the device, waits for nothing.

        Parameters
        ----------
        query_start_loc : Tensor
            First query row of each request, int32, shape ``[batch + 1]``. A request without rows is padding.
        seq_lens : Tensor
            Tokens per request, its query rows included, int32, shape ``[batch]``; 0 is padding as well.

        Notes
        -----
        Not checked: that ``query_len <= max_query_len`` and ``query_len <= seq_len``.

        """
        batch = seq_lens.shape[0]
        if batch > self.max_requests:
            raise refuse("seq_lens", f"of at most {self.max_requests} requests", batch)
        check_tensor("seq_lens", seq_lens, (batch,), (torch.int32,), self.prefix_lens.device)
        check_tensor("query_start_loc", query_start_loc, (batch + 1,), (torch.int32,), self.prefix_lens.device)
        check_contiguous("seq_lens", seq_lens)
        check_contiguous("query_start_loc", query_start_loc)
        if self.prefix_lens.device.type == "cuda":
            self.launch(query_start_loc, seq_lens)
        else:
            self.reference(query_start_loc, seq_lens)

    def reference(self, query_start_loc: Tensor, seq_lens: Tensor) -> None:
        """Do as `prepare` says, in plain torch."""
        batch, tile = seq_lens.shape[0], self.tuning.tile
        query_lens = query_start_loc.diff()
        active = (query_lens > 0) & (seq_lens > 0)
        prefix = torch.where(active, seq_lens - query_lens + 1, 0)
        first = ((seq_lens - query_lens - self.window + 1).clamp(min=0) // tile) if self.window else 0
        tiles = torch.where(active, (seq_lens + tile - 1) // tile - first, 0)
        ends = tiles.cumsum(0, dtype=torch.int32)
        self.tile_starts[1 : batch + 1] = ends
        room = (prefix + SCORE_ALIGNMENT - 1) // SCORE_ALIGNMENT * SCORE_ALIGNMENT
        offsets_end = room.cumsum(0)
        fits = offsets_end <= self.score_capacity
        self.prefix_lens[:batch] = prefix
        self.score_offsets[:batch] = torch.where(active & fits, offsets_end - room, -1)
        if self.score_capacity:
            self.dropped.add_((active & ~fits).sum())

        units = ends * self.num_kv_heads
        working = tiles[tiles > 0]
        total, longest = int(tiles.sum()) * self.num_kv_heads, max(tiles.tolist(), default=0)
        pairs = len(working) * self.num_kv_heads
        even = -(-total // self.num_programs)
        splits = self.num_programs // max(pairs, 1)
        whole = -(-longest // splits) if splits else -(-pairs // self.num_programs) * longest
        aligned = whole * 100 <= even * (100 + ALIGNMENT_SLACK)
        share = whole if aligned else even
        rounds = -(-pairs // self.num_programs)
        leading_and_same = bool((tiles[: len(working)] == longest).all())
        step = -(-pairs // rounds) if aligned and rounds > 1 and leading_and_same else 0
        self.programs.zero_()
        self.programs[:, record.SHARE.value] = share
        self.programs[:, record.STEP.value] = step
        for program in range(self.num_programs):
            start = program * (longest if step else share)
            count = min(share, total - start)
            if step:
                count = -(-(pairs - program) // step) * longest if program < step else 0
            if count <= 0:
                continue
            request = int((units <= start).sum())
            begin, per_head = int(units[request] - tiles[request] * self.num_kv_heads), int(tiles[request])
            head = (start - begin) // per_head
            head_start = begin + head * per_head
            fields = {
                record.REQUEST: request, record.HEAD: head, record.TILE: start - head_start, record.UNITS: count,
                record.TILES: per_head, record.HEAD_START: head_start, record.ROW_START: query_start_loc[request],
                record.QUERY_LEN: query_lens[request], record.SEQ_LEN: seq_lens[request],
                record.SCORE_OFFSET: self.score_offsets[request],
            }  # fmt: skip
            for field, value in fields.items():
                self.programs[program, field.value] = value

    def launch(self, query_start_loc: Tensor, seq_lens: Tensor) -> None:
        """Do as `prepare` says, in one kernel."""
        batch = seq_lens.shape[0]
        plan_kernel[(triton.cdiv(self.num_programs, RECORDS),)](
            query_start_loc,
            seq_lens,
            self.tile_starts,
            self.programs,
            self.prefix_lens,
            self.score_offsets,
            self.dropped,
            batch,
            self.score_capacity,
            self.window or 0,
            TILE=self.tuning.tile,
            KV_HEADS=self.num_kv_heads,
            PROGRAMS=self.num_programs,
            # One kernel per power of two, compiled at the first step of so many requests, while serving. A warm-up
            # would stand at the end of `allocate`, which knows the largest: one launch of padding for each.
            BATCH=max(16, triton.next_power_of_2(batch)),
            SLACK=ALIGNMENT_SLACK,
            num_warps=4,
        )
