"""Quest over a paged cache chooses what the embedded engine's policy chooses; without vLLM."""

import pytest
import torch

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Drafting, Queries, Verified, make_policy
from vegas_spec.vllm.worker.draft_kv import ScoredRows
from vegas_spec.vllm.worker.quest import QuestKV

CONFIG = VegasConfig(policy="quest", num_speculative_tokens=3, kv_budget=0.3, kv_budget_min=20)
KV_HEADS, HEADS, DIM, BLOCKS = 2, 4, 32, 48


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("lengths", [(200, 37), (16, 1), (320, 255)])
def test_pages(block_size, lengths):
    """Page by page in any order of blocks, with a rejected draft's keys in between, and a request that is padding."""
    generator = torch.Generator().manual_seed(lengths[0])
    keys = torch.randn(2, KV_HEADS, 400, DIM, generator=generator)
    table = torch.randperm(BLOCKS + 1, generator=generator).int()[: 2 * (BLOCKS // 2)].view(2, -1)
    cache = torch.full((BLOCKS + 1, block_size, KV_HEADS, DIM), torch.nan)
    quest = QuestKV(
        CONFIG,
        num_layers=2,
        dtype=torch.float32,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        max_requests=4,
        max_model_len=400,
        score_capacity=64,
        max_bytes=None,
        device=torch.device("cpu"),
    )
    quest.fit((BLOCKS + 1) * block_size)

    def write(request, start, stop, values):
        position = torch.arange(start, stop)
        slots = table[request, position // block_size] * block_size + position % block_size
        cache.flatten(0, 1)[slots.long()] = values.transpose(0, 1)
        quest.bound_pages(1, cache, torch.cat([slots.long(), torch.tensor([-1])]))

    for request, length in enumerate(lengths):
        write(request, 0, length // 2, keys[request, :, : length // 2])
        write(request, length // 2, length, torch.full((KV_HEADS, length - length // 2, DIM), 9.0))
        for start in range(length // 2, length, 3):
            stop = min(start + 3, length)
            write(request, start, stop, keys[request, :, start:stop])
    seq_lens = torch.tensor([*lengths, 0], dtype=torch.int32)
    tables = torch.cat([table, torch.zeros_like(table[:1])])
    quest.unscored[1,] = ScoredRows(torch.tensor([0, 1, 2, 2]).int(), seq_lens, tables, None, scored=False), block_size
    quest.choose_unscored()
    query = torch.randn(3, HEADS, DIM, generator=generator)
    slots = quest.choose_pages(1, query, tables, block_size)

    policy = make_policy(CONFIG)
    policy.select(Verified(slots=[0, 1], prefix_lens=lengths, num_accepted=[0, 0], keys=[keys]))
    queries = Queries(query[:2].transpose(0, 1), 1.0, None)
    chosen = policy.select_step(0, Drafting([0, 1], lengths, lengths, queries, keys))
    for request, length in enumerate(lengths):
        count = policy.num_entries(length)
        assert quest.counts[request] == count
        for head in range(KV_HEADS):
            position = torch.cat([chosen[request, head, :count], torch.arange(length, length + quest.tail)])
            expected = table[request, position // block_size] * block_size + position % block_size
            got = slots[request, head, : count + quest.tail]
            assert set(got[:count].tolist()) == set(expected[:count].tolist())
            assert got[count:].tolist() == expected[count:].tolist()
