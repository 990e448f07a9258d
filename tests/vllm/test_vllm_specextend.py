"""SpecExtend over a paged cache chooses what the embedded engine's policy chooses; without vLLM."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Queries, Verified, make_policy
from vegas_spec.policies.specextend import CHUNK_SIZE, REFRESH_INTERVAL
from vegas_spec.vllm.worker.draft_kv import Likeness, ScoredRows
from vegas_spec.vllm.worker.specextend import SpecExtendKV

CONFIG = VegasConfig(policy="specextend", num_speculative_tokens=3, kv_budget=0.3, kv_budget_min=40)
GAMMA, KV_HEADS, HEADS, DIM, MOST, SLOTS, SCALE = 3, 2, 4, 32, 400, 4, 0.5
SINKS = torch.tensor([0.0, 13.0, -1.0, 10.0])


class Engine:
    """The paged side and the policy, step by step over the same keys and queries; chosen positions are compared."""

    def __init__(self, block_size, seed):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.policy, self.block_size = make_policy(CONFIG), block_size
        self.kv = SpecExtendKV(
            CONFIG,
            num_layers=3,
            dtype=torch.float32,
            max_tokens=256,
            over_ranks=lambda scores: scores,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=DIM,
            max_requests=SLOTS,
            max_model_len=MOST,
            score_capacity=64,
            max_bytes=None,
            device=torch.device("cpu"),
        )
        # Layer 1 has a block table of its own.
        self.kv.divide([(0, 2), (1,)])
        each = -(-MOST // block_size)
        tables = torch.randperm(2 * SLOTS * each, generator=self.generator).int()
        self.tables = tables.view(2, SLOTS, each)
        # What was never written, and what lies past a request's end, is not a number.
        self.cache = torch.full((2 * SLOTS * each, block_size, KV_HEADS, DIM), torch.nan)
        self.keys = torch.empty(SLOTS, KV_HEADS, MOST, DIM)
        self.length, self.prompt = [0] * SLOTS, [0] * SLOTS

    def begin(self, slot, prompt):
        """Another request takes the slot, or the one that has it begins anew."""
        self.policy.release(slot)
        self.keys[slot] = torch.randn(KV_HEADS, MOST, DIM, generator=self.generator)
        self.length[slot], self.prompt[slot] = 0, prompt

    def slots_of(self, part, slot, position):
        place = self.tables[part, slot, position // self.block_size]
        return (place * self.block_size + position % self.block_size).long()

    def step(self, rows, drafting=True):
        """Run so many rows of each slot's request; whoever has not read its prompt reads it. Compare what is chosen."""
        slots, counts = list(rows), list(rows.values())
        reading = [self.length[slot] < self.prompt[slot] for slot in slots]
        before = [self.length[slot] for slot in slots]
        rejected = [0 if read else self.random.randrange(count) for read, count in zip(reading, counts, strict=True)]
        query = torch.randn(sum(counts), HEADS, DIM, generator=self.generator)
        lengths = [start + count for start, count in zip(before, counts, strict=True)]
        for slot, start, end, wrong in zip(slots, before, lengths, rejected, strict=True):
            keys = self.keys[slot, :, start:end].clone()
            keys[:, len(keys[0]) - wrong :] = torch.nan
            position = torch.arange(start, end)
            self.cache.flatten(0, 1)[self.slots_of(0, slot, position)] = keys.transpose(0, 1)
            self.length[slot] = end - wrong
        starts = torch.tensor([0, *counts]).cumsum(0).int()
        compact = torch.tensor([0, *(1 if read else n for read, n in zip(reading, counts, strict=True)), 0])
        seq_lens = torch.tensor([*lengths, 0]).int()
        for part, layers in enumerate([(0, 2), (1,)]):
            table = torch.cat([self.tables[part, slots], torch.zeros_like(self.tables[part, :1])])
            described = ScoredRows(compact.cumsum(0).int(), seq_lens, table, None, scored=False)
            self.kv.prepare(described, layers, self.block_size)
        for layer in range(3):
            # Other layers' queries and keys are not looked at.
            asking, keys = (query, self.cache) if layer == 2 else (query + torch.nan, self.cache + torch.nan)
            self.kv.of_layer(layer).verified(asking, keys, None, Likeness(SCALE / 2, None, SINKS, torch.tensor([2.0])))
        batch = SimpleNamespace(
            num_reqs=len(slots),
            idx_mapping=torch.tensor(slots),
            idx_mapping_np=np.array(slots),
            query_start_loc=starts,
            seq_lens=seq_lens,
            # The host knows a bound only.
            seq_lens_cpu_upper_bound=torch.tensor([*(length + 7 for length in lengths), 0]),
            num_scheduled_tokens=np.array(counts),
            num_computed_prefill_tokens_np=np.minimum(before, [self.prompt[slot] for slot in slots]),
            prefill_len_np=np.array([self.prompt[slot] for slot in slots]),
            is_prefilling_np=np.array(reading),
        )
        self.kv.accepted(batch, torch.tensor(rejected).int(), drafting)
        if not drafting:
            for slot in slots:
                self.policy.release(slot)
            return
        self.kv.choose_unscored()
        for place, (slot, read) in enumerate(zip(slots, reading, strict=True)):
            if self.length[slot] >= self.prompt[slot]:
                of_request = query[starts[place] : starts[place + 1]]
                self.compare(place, slot, of_request[-1:] if read else of_request, rejected[place], lengths[place])

    def compare(self, place, slot, query, rejected, length):
        prefix = length - len(query) + 1
        queries = Queries(query.transpose(0, 1), SCALE, SINKS)
        keys = [torch.full_like(self.keys, torch.nan)] * 2 + [self.keys]
        verified = Verified([slot], [prefix], [len(query) - 1 - rejected], keys, queries=[queries])
        chosen = self.policy.select(verified)[0, 0, 0]
        count = len(chosen)
        assert int(self.kv.plan.prefix_lens[place]) == prefix
        assert int(self.kv.counts[place]) == count <= self.policy.num_entries(prefix)
        position = torch.cat([chosen, torch.arange(prefix, prefix + self.kv.tail)])
        position = position[position < MOST]
        for layer, part in ((0, 0), (1, 1), (2, 0)):
            got = self.kv.of_layer(layer).chosen(torch.empty(place + 1, 0), None, 0)[place, 0]
            assert got[: len(position)].tolist() == self.slots_of(part, slot, position).tolist()


def test_the_profiles_cache_is_let_go():
    """VLLM measures graphs over a small cache, then divides the layers of the real one."""
    engine = Engine(16, seed=0)
    engine.begin(0, 100)
    engine.step({0: 100})
    assert engine.kv.keys is not None
    engine.kv.divide([(0, 2), (1,)])
    assert engine.kv.keys is None


@pytest.mark.parametrize("block_size", [16, 64])
def test_requests_that_come_and_go(block_size):
    """Schedules of their own, prompts in chunks, another order of the batch, a slot's next request, plain steps."""
    engine = Engine(block_size, seed=block_size)
    engine.begin(2, 130)
    engine.step({2: 130})
    for _ in range(3):
        engine.step({2: GAMMA + 1})
    engine.begin(0, 200)
    engine.step({2: GAMMA + 1, 0: 150})
    engine.step({2: GAMMA + 1, 0: 50})
    for turn in range(2 * REFRESH_INTERVAL):
        engine.step({2: GAMMA + 1, 0: 2} if turn % 3 else {0: GAMMA + 1, 2: GAMMA + 1})
    # The first one's slot goes to another request, which reads its prompt beside the second one.
    engine.begin(2, 64)
    engine.step({0: GAMMA + 1, 2: 64})
    engine.step({0: GAMMA + 1, 2: 1})
    # Decoding plainly, for longer than there is room for what is recent.
    for _ in range(CHUNK_SIZE + (GAMMA + 1) * REFRESH_INTERVAL):
        engine.step({0: 1, 2: 1}, drafting=False)
    for _ in range(REFRESH_INTERVAL + 2):
        engine.step({0: GAMMA + 1, 2: GAMMA + 1})
    # Preempted, and back with a prompt of all it has said, the last token of which alone is left to run.
    engine.begin(0, 97)
    engine.length[0] = 96
    engine.cache.flatten(0, 1)[engine.slots_of(0, 0, torch.arange(96))] = engine.keys[0, :, :96].transpose(0, 1)
    for _ in range(REFRESH_INTERVAL + 2):
        engine.step({0: 1, 2: GAMMA + 1})


def test_a_retrieval_at_every_eighth_iteration(monkeypatch):
    """And none for a prompt that has not been read to its end."""
    engine, looked = Engine(16, seed=0), []
    retrieve = engine.kv.retrieve
    monkeypatch.setattr(engine.kv, "retrieve", lambda *args: (looked.append(turn), retrieve(*args)))
    engine.begin(1, 100)
    turn = -2
    engine.step({1: 60})
    turn = -1
    engine.step({1: 40})
    for turn in range(2 * REFRESH_INTERVAL):  # noqa: B007
        engine.step({1: GAMMA + 1})
    assert looked == [-1, 7, 15]


@pytest.mark.parametrize(("rejected", "best"), [(2, 0), (1, 1), (0, 2)])
def test_the_last_accepted_row_ranks_whole_chunks(rejected, best):
    """Rows that look at one chunk each, the third at keys that the second may not see; 40 entries hold one chunk."""
    engine = Engine(16, seed=1)
    cache = torch.zeros_like(engine.cache)
    for chunk in range(3):
        cache.flatten(0, 1)[engine.slots_of(0, 3, torch.arange(32 * chunk, 32 * chunk + 32)), :, chunk] = 1.0
    # Positions 102 and 103, the second and third row's: the second would look at nothing else if it saw the third.
    cache.flatten(0, 1)[engine.slots_of(0, 3, torch.tensor([103])), :, 1] = 100.0
    query = torch.eye(DIM)[:3, None].expand(3, HEADS, DIM).contiguous() * 8
    tables = engine.tables[:, 3:]
    starts, seq_lens = torch.tensor([0, 3]).int(), torch.tensor([104]).int()
    for part, layers in enumerate([(0, 2), (1,)]):
        engine.kv.prepare(ScoredRows(starts, seq_lens, tables[part], None, scored=False), layers, 16)
    where = engine.kv.queries.data_ptr()
    engine.kv.of_layer(2).verified(query, cache, None, Likeness(1.0, None, None))
    assert engine.kv.queries.data_ptr() == where
    batch = SimpleNamespace(
        num_reqs=1,
        idx_mapping=torch.tensor([3]),
        idx_mapping_np=np.array([3]),
        query_start_loc=starts,
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=seq_lens,
        num_scheduled_tokens=np.array([3]),
        num_computed_prefill_tokens_np=np.array([90]),
        prefill_len_np=np.array([90]),
        is_prefilling_np=np.array([False]),
    )
    engine.kv.accepted(batch, torch.tensor([rejected]), drafting=True)
    engine.kv.choose_unscored()
    # The prefix ends before position 102; its last whole chunk at 96.
    positions = [*range(32 * best, 32 * best + 32), *range(96, 102 + engine.kv.tail)]
    assert int(engine.kv.counts[0]) == 32 + 6
    expected = engine.slots_of(0, 3, torch.tensor(positions)).tolist()
    assert engine.kv.slots[0, 0, 0, : len(positions)].tolist() == expected


def test_a_step_of_the_engines_own_changes_nothing():
    """One that warms up, or keeps other ranks company, is laid out and forgets nothing of the requests."""
    engine = Engine(16, seed=2)
    engine.begin(0, 100)
    engine.step({0: 100})
    kept = [tensor.clone() for tensor in (engine.kv.chunks, engine.kv.recent_from, torch.tensor(engine.kv.served))]
    step = ScoredRows(torch.tensor([0, 1, 2]).int(), torch.tensor([1, 1]).int(), engine.tables[0, :2], None, False)
    engine.kv.prepare(step, (0, 2), 16)
    engine.kv.choose_unscored()
    for before, tensor in zip(kept, (engine.kv.chunks, engine.kv.recent_from, engine.kv.served), strict=True):
        assert torch.equal(before, torch.as_tensor(tensor))
    engine.step({0: GAMMA + 1})


def test_ranks_sum_their_scores():
    """Two ranks with half of the heads each choose what one with all heads chooses."""
    generator = torch.Generator().manual_seed(3)
    keys = torch.randn(20, 16, KV_HEADS, DIM, generator=generator)
    query = torch.randn(HEADS, DIM, generator=generator)
    blocks = torch.arange(20, dtype=torch.int32)

    def chosen(heads, kv_heads, over_ranks):
        kv = SpecExtendKV(
            CONFIG,
            num_layers=1,
            dtype=torch.float32,
            max_tokens=8,
            over_ranks=over_ranks,
            num_heads=heads.stop - heads.start,
            num_kv_heads=kv_heads.stop - kv_heads.start,
            head_dim=DIM,
            max_requests=1,
            max_model_len=MOST,
            score_capacity=0,
            max_bytes=None,
            device=torch.device("cpu"),
        )
        kv.plan.prefix_lens[0] = 300
        kv.keys, kv.like = keys[:, :, kv_heads], Likeness(SCALE, None, None)
        kv.retrieve(0, 0, query[heads], torch.tensor([300]), blocks, 320)
        return kv.chunks[0].tolist()

    given = []
    halves = [(slice(0, 2), slice(0, 1)), (slice(2, 4), slice(1, 2))]
    for half in halves:
        chosen(*half, lambda scores: given.append(scores) or scores)
    both = [chosen(*half, lambda scores: sum(given)) for half in halves]
    whole = chosen(slice(0, 4), slice(0, 2), lambda scores: scores)
    assert both == [whole, whole]
    assert any(chosen(*half, lambda scores: scores) != whole for half in halves)
