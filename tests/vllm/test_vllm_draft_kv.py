"""Which rows are scored, and what the buffers between verification and draft hold; without vLLM."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from vegas_spec.config import VegasConfig
from vegas_spec.vllm.start import banner
from vegas_spec.vllm.worker.attention import VegasAttention, VegasMetadataBuilder, prompts_only, scored_rows
from vegas_spec.vllm.worker.draft_kv import OpParams, ScoredKV, ScoredRows, Sizes

CONFIG = VegasConfig(num_speculative_tokens=3, kv_budget=0.25, kv_budget_min=4)
BLOCK = 16


@dataclass
class Step:
    """As much of vLLM's `CommonAttentionMetadata` as is read."""

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    block_table_tensor: torch.Tensor
    is_prefilling: torch.Tensor
    max_query_len: int
    num_reqs: int
    num_actual_tokens: int
    slot_mapping: torch.Tensor


def batch(*requests):
    """A step's description: of each request its query rows, its length, and whether they are its prompt's."""
    rows, lengths, prompts = zip(*requests, strict=True)
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    return Step(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table_tensor=torch.arange(len(rows) * 8, dtype=torch.int32).view(len(rows), 8),
        is_prefilling=torch.tensor(prompts),
        max_query_len=max(rows),
        num_reqs=len(rows),
        num_actual_tokens=sum(rows),
        slot_mapping=torch.arange(sum(rows)),
    )


@pytest.mark.parametrize(
    ("requests", "starts", "index"),
    [
        ([(4, 20, False), (4, 9, False)], [0, 4, 8], None),
        ([(4, 20, False), (1, 9, False)], [0, 4, 5], None),
        ([(4, 20, False), (10, 10, True)], [0, 4, 5], [0, 1, 2, 3, 13]),
        # The last chunk of a prompt, however short, is no verification.
        ([(3, 30, True), (2, 12, False)], [0, 1, 3], [2, 3, 4]),
        ([(4, 20, False), (3, 9, True)], [0, 4, 5], [0, 1, 2, 3, 6]),
        ([(1, 1, True)], [0, 1], [0]),
        # But as many rows as a verification has may be a prompt's last token and padding.
        ([(4, 20, False), (4, 9, True)], [0, 4, 8], None),
        ([(4, 33, True), (1, 9, False), (10, 10, True)], [0, 4, 5, 6], [0, 1, 2, 3, 4, 14]),
    ],
)
def test_scored_rows(requests, starts, index):
    """Verifications are scored whole, prompts by their last row."""
    rows = scored_rows(batch(*requests), gamma=3, falls_back=False)
    assert rows.query_start_loc.tolist() == starts
    assert (rows.index if rows.index is None else rows.index.tolist()) == index


@pytest.mark.parametrize(
    ("requests", "whole"),
    [
        # A prompt's last token may stand before drafts that are none, in the graph of verifications.
        ([(3, 20, False), (3, 9, True)], True),
        ([(2, 20, False), (2, 9, True)], False),
        ([(4, 20, False), (3, 9, True)], False),
    ],
)
def test_what_a_graph_may_replay_is_laid_out_as_it_was_captured(requests, whole):
    rows = scored_rows(batch(*requests), gamma=3, falls_back=False, graph_rows={3, 4})
    assert (rows.index is None) == whole


@pytest.mark.parametrize(
    ("requests", "first"),
    [
        ([(4, 20, False), (10, 10, True)], 1),
        ([(4, 20, False), (4, 30, False), (2, 12, True), (10, 10, True)], 2),
        ([(4, 20, False), (4, 33, True), (1, 9, False), (10, 10, True)], 3),
        # All prompts; and an order in which prompts do not stand together.
        ([(3, 30, True), (10, 12, True)], 0),
        ([(10, 30, True), (4, 12, False)], 0),
    ],
)
def test_where_the_prompts_begin(requests, first):
    assert scored_rows(batch(*requests), gamma=3, falls_back=False).first_prompt == first


def test_a_padded_prompts_draft_reads_up_to_its_newest_token():
    """A cached prompt's last token, at position 29, runs before three drafts that are none and are rejected."""
    draft_kv = make()
    step = batch((4, 33, True), (1, 20, False))
    draft_kv.prepare(scored_rows(step, gamma=3, falls_back=False), (0, 1), BLOCK)
    assert int(draft_kv.prefix_lens[0]) == 33 - 3


def test_prompts_only():
    step = batch((4, 20, False), (4, 30, False), (2, 12, True), (10, 10, True))
    prompts = prompts_only(step, 2)
    assert prompts.query_start_loc.tolist() == [0, 2, 12]
    assert prompts.seq_lens.tolist() == [12, 10]
    assert torch.equal(prompts.block_table_tensor, step.block_table_tensor[2:])
    assert prompts.slot_mapping.tolist() == list(range(8, 20))
    assert (prompts.num_reqs, prompts.num_actual_tokens) == (2, 12)
    assert step.num_reqs == 4


def test_decoding_requests_are_attended_once():
    """Beside prompts, the backend's own attention gets the prompts' rows only, and every row gets its output."""
    seen = []

    class Builder:
        block_size = BLOCK

        def build(self, common_prefix_len, common, fast_build=False):
            return Metadata(common.num_actual_tokens, common.seq_lens)

    @dataclass
    class Metadata:
        num_actual_tokens: int
        seq_lens: torch.Tensor

    class Own:
        scale, logits_soft_cap, sinks = 0.125, None, None

        def forward(self, layer, query, key, value, kv_cache, metadata, output):
            seen.append((query.shape[0], metadata.seq_lens.tolist()))
            return output.fill_(7.0)

    builder = type("VegasBuilder", (VegasMetadataBuilder, Builder), {})()
    attention = type("VegasOwn", (VegasAttention, Own), {})()
    builder.draft_kv, builder.selecting = make(), (0,)
    attention.vegas = builder.draft_kv.of_layer(0)
    metadata = builder.build(0, batch((4, 20, False), (10, 100, True)))
    query, key, value = (torch.randn(14, heads, 32) for heads in (4, 2, 2))
    output = torch.full_like(query, torch.nan)
    attention.forward(None, query, key, value, torch.randn(16, 2, BLOCK, 64), metadata, output)
    assert seen == [(10, [100])]
    assert output.isfinite().all()
    assert (output[4:13] == 7.0).all()
    assert not (output[:4] == 7.0).any()


def make(tokens=1000, max_bytes=None, config=CONFIG):
    sizes = Sizes(
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        max_requests=8,
        max_model_len=128,
        tokens=tokens,
        max_bytes=max_bytes,
        device=torch.device("cpu"),
    )
    return ScoredKV(config, sizes)


def verify(draft_kv, rows, cache, layer=0):
    """One layer's verification with random queries."""
    query = torch.randn(int(rows.query_start_loc[-1]), 4, 32)
    keys, values = cache.transpose(1, 2).chunk(2, dim=-1)
    draft_kv.prepare(rows, (0, 1), BLOCK)
    params = OpParams(0.2, None, None)
    draft_kv.of_layer(layer).verify(query, keys, values, rows, params, out=torch.empty_like(query))


def test_slots_are_the_requests_own():
    """Every slot that a draft will read lies in a block of its request; recent positions are all there."""
    draft_kv = make()
    step = batch((4, 100, False), (1, 37, False), (4, 4, False))
    rows = scored_rows(step, gamma=3, falls_back=False)
    verify(draft_kv, rows, torch.randn(24, 2, BLOCK, 64))
    for request, (length, query) in enumerate([(100, 4), (37, 1), (4, 4)]):
        prefix = length - query + 1
        count = int(draft_kv.counts[request])
        assert count == CONFIG.budget(prefix)
        slots = draft_kv.slots[0, request, :, : count + draft_kv.tail]
        blocks = step.block_table_tensor[request].tolist()
        assert set((slots // BLOCK).flatten().tolist()) <= set(blocks)
        recent = [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(prefix, prefix + draft_kv.tail)]
        assert slots[:, count:].tolist() == [recent, recent]
        assert (slots[:, :count].diff(dim=1) > 0).all()


def test_a_padding_row_writes_nothing():
    """A row of a graph that no request fills."""
    draft_kv = make()
    draft_kv.slots.fill_(-7)
    step = batch((4, 50, False), (0, 0, False))
    verify(draft_kv, scored_rows(step, gamma=3, falls_back=False), torch.randn(16, 2, BLOCK, 64))
    assert (draft_kv.slots[0, 1] == -7).all()
    assert (draft_kv.slots[1] == -7).all()


def test_shared_prefixes_may_exceed_the_scratch():
    """Requests that find no room draft over the first and the latest positions, and are counted."""
    draft_kv = make(tokens=256)
    step = batch(*[(4, 120, False)] * 8)
    shared = ScoredRows(step.query_start_loc, step.seq_lens, step.block_table_tensor[:1].repeat(8, 1), None)
    verify(draft_kv, shared, torch.randn(8, 2, BLOCK, 64))
    assert draft_kv.dropped == 6
    prefix, count = 117, CONFIG.budget(117)
    table = step.block_table_tensor[0].tolist()
    positions = [*range(16), *range(prefix - count + 16, prefix)]
    expected = [table[p // BLOCK] * BLOCK + p % BLOCK for p in positions]
    for request in range(2, 8):
        assert draft_kv.slots[0, request, 0, :count].tolist() == expected


def test_memory_is_bounded():
    """A bound on the slots cuts the budget of a full context, not the minimum, and not what is recent."""
    unbounded = make()
    assert unbounded.most == CONFIG.budget(128) == 32
    bounded = make(max_bytes=unbounded.slots.nbytes // 2)
    assert bounded.slots.nbytes <= unbounded.slots.nbytes // 2
    assert CONFIG.kv_budget_min <= bounded.most < unbounded.most
    assert banner.cut_budget(CONFIG, unbounded) is None
    assert f"contexts of 128 tokens read {bounded.most} entries instead of 32" in banner.cut_budget(CONFIG, bounded)
    rows = scored_rows(batch((4, 128, False)), gamma=3, falls_back=False)
    verify(bounded, rows, torch.randn(8, 2, BLOCK, 64))
    assert int(bounded.counts[0]) == bounded.most
    assert make(max_bytes=1).most == CONFIG.kv_budget_min


def test_a_draft_after_plain_decoding():
    """Plain steps are not scored; should a draft follow after all, all layers read the first and latest positions."""
    draft_kv = make()
    step = batch((1, 100, False), (1, 30, False))
    rows = scored_rows(step, gamma=3, falls_back=True)
    assert not rows.scored
    draft_kv.prepare(rows, (0, 1), BLOCK)
    draft_kv.choose()
    for request, prefix in enumerate((100, 30)):
        count = CONFIG.budget(prefix)
        table = step.block_table_tensor[request].tolist()
        first = min(16, count)
        positions = [*range(first), *range(prefix - count + first, prefix + draft_kv.tail)]
        expected = [table[p // BLOCK] * BLOCK + p % BLOCK for p in positions]
        for layer, head in ((0, 0), (1, 1)):
            assert draft_kv.slots[layer, request, head, : count + draft_kv.tail].tolist() == expected


def test_a_scored_step_forgets_the_plain_one():
    """Only the last step counts."""
    draft_kv = make()
    draft_kv.prepare(scored_rows(batch((1, 100, False)), gamma=3, falls_back=True), (0, 1), BLOCK)
    rows = scored_rows(batch((4, 100, False)), gamma=3, falls_back=True)
    assert rows.scored
    verify(draft_kv, rows, torch.randn(8, 2, BLOCK, 64))
    assert not draft_kv.unscored


@pytest.mark.parametrize("phase", ["verify", "draft"])
def test_a_cache_in_bytes_is_fp8_with_scales(phase):
    """Bytes with scales, and a query that vLLM quantised, give what the values that they stand for give."""

    class Own:
        scale, logits_soft_cap, sinks = 0.125, None, None

    generator = torch.Generator().manual_seed(0)
    quantised = torch.randn(16, 2, BLOCK, 64, generator=generator).to(torch.float8_e4m3fn)
    query8 = torch.randn(8, 4, 32, generator=generator).to(torch.float8_e4m3fn)
    # vLLM's layers have their scales under these names, and no others.
    layer = SimpleNamespace(**{f"_{name}_scale": torch.tensor(s) for name, s in (("q", 0.5), ("k", 2.0), ("v", 0.25))})
    plain = quantised.float() * torch.cat([torch.full((32,), 2.0), torch.full((32,), 0.25)])
    outputs, slots = [], []
    for cache, query in ((quantised.view(torch.uint8), query8), (plain, 0.5 * query8.float())):
        attention = type("VegasOwn", (VegasAttention, Own), {})()
        attention.vegas = make().of_layer(0)
        step = batch((4, 20, False), (4, 100, False))
        rows = scored_rows(step, gamma=3, falls_back=False)
        attention.vegas.owner.prepare(rows, (0, 1), BLOCK)
        metadata = SimpleNamespace(num_actual_tokens=8, phase="verify", scored=rows, seq_lens=step.seq_lens)
        output = torch.zeros(8, 4, 32)
        attention.forward(layer, query, None, None, cache, metadata, output)
        if phase == "draft":
            blocks = step.block_table_tensor
            metadata = SimpleNamespace(num_actual_tokens=2, phase="draft", seq_lens=step.seq_lens, block_table=blocks)
            output = torch.zeros(2, 4, 32)
            attention.forward(layer, query[:2], None, None, cache, metadata, output)
        outputs.append(output)
        slots.append(attention.vegas.owner.slots)
    torch.testing.assert_close(*outputs)
    assert torch.equal(*slots)
    assert outputs[0].abs().max() > 0
