"""Policies over a paged cache choose what they choose in the embedded engine; without vLLM."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from policy_cases import dense, drafting, places, reserved, verified

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Policy, Queries, make_policy
from vegas_spec.policies.keys import DenseKeys, PagedKeys
from vegas_spec.policies.specextend import CHUNK_SIZE, REFRESH_INTERVAL
from vegas_spec.selection import NO_POSITION
from vegas_spec.vllm.worker.draft_kv import OpParams, ScoredRows, Sizes
from vegas_spec.vllm.worker.policy_kv import PolicyKV

GAMMA, KV_HEADS, HEADS, DIM, MOST, SLOTS, LAYERS = 3, 2, 4, 32, 400, 4, 3
PARTS = [(0, 2), (1,)]
"""Layers that share a block table."""
PARAMS = OpParams(0.25, None, torch.tensor([0.0, 13.0, -1.0, 10.0]), torch.tensor([2.0]))
"""The cache holds half of what its keys are."""


class PerLayer(Policy):
    """Of each layer and KV head another stretch of the prefix, of which the requests' slots decide, too."""

    name = "per-layer"
    summary = "another stretch for each layer and head"

    def select(self, verified):
        layer = torch.arange(LAYERS)[:, None, None, None]
        first = 5 * layer + 3 * torch.arange(KV_HEADS)[:, None] + verified.slot_index[:, None, None]
        counts = (verified.prefix_lens - 40).clamp(min=0).minimum(verified.budgets)[:, None, None]
        column = torch.arange(verified.width)
        return torch.where(column < counts, first + column, NO_POSITION)


class Paged:
    """A policy over a paged cache, and the same policy asked as the embedded engine asks it, step by step."""

    def __init__(self, policy, block_size=16, seed=0):
        self.config = VegasConfig(policy=policy, num_speculative_tokens=GAMMA, kv_budget=0.3, kv_budget_min=40)
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.block_size = block_size
        each = -(-MOST // block_size)
        self.kv = PolicyKV(
            self.config,
            Sizes(
                num_layers=LAYERS,
                num_heads=HEADS,
                num_kv_heads=KV_HEADS,
                head_dim=DIM,
                max_requests=SLOTS,
                max_model_len=MOST,
                tokens=64,
                max_bytes=None,
                device=torch.device("cpu"),
            ),
            make_policy(self.config),
            dtype=torch.float32,
            max_tokens=256,
            over_ranks=lambda scores: scores,
        )
        # As in vLLM, where the cache turns out larger than what was profiled.
        self.kv.fit(2 * SLOTS * each * block_size)
        self.kv.divide(PARTS)
        tables = torch.randperm(2 * SLOTS * each, generator=self.generator).int()
        self.tables = tables.view(2, SLOTS, each)
        # What was never written, and what lies past a request's end, is not a number.
        self.cache = torch.full((LAYERS, 2 * SLOTS * each, block_size, KV_HEADS, DIM), torch.nan)
        self.keys = torch.full((LAYERS, SLOTS, KV_HEADS, MOST, DIM), torch.nan)
        self.length, self.prompt = [0] * SLOTS, [0] * SLOTS
        self.engine = Embedded(self.config, self.keys)

    def begin(self, slot, prompt, cached=0):
        """Another request takes the slot, or the one that has it begins anew; some of its prompt may be cached."""
        self.engine.release(slot)
        self.keys[:, slot] = torch.randn(LAYERS, KV_HEADS, MOST, DIM, generator=self.generator)
        self.length[slot], self.prompt[slot] = 0, prompt
        if cached:
            self.write(slot, 0, cached)
            for layer in range(LAYERS):
                places = self.slots_of(self.part(layer), slot, torch.arange(cached))
                self.kv.of_layer(layer).verified(torch.zeros(0, HEADS, DIM), self.cache[layer], places, PARAMS)
            self.length[slot] = cached

    @staticmethod
    def part(layer):
        return 1 if layer == 1 else 0

    def slots_of(self, part, slot, position):
        place = self.tables[part, slot, position // self.block_size]
        return (place * self.block_size + position % self.block_size).long()

    def write(self, slot, start, end, wrong=0):
        """The keys of a step's rows, of which the last ones are of drafts that are rejected."""
        for layer in range(LAYERS):
            keys = self.keys[layer, slot, :, start:end].clone()
            keys[:, len(keys[0]) - wrong :] = 7.0
            places = self.slots_of(self.part(layer), slot, torch.arange(start, end))
            self.cache[layer].flatten(0, 1)[places] = keys.transpose(0, 1) / 2

    def step(self, rows, drafting=True):
        """Run so many rows of each slot's request; whoever has not read its prompt reads it. Compare what is read."""
        slots, counts = list(rows), list(rows.values())
        reading = [self.length[slot] < self.prompt[slot] for slot in slots]
        before = [self.length[slot] for slot in slots]
        rejected = [0 if read else self.random.randrange(count) for read, count in zip(reading, counts, strict=True)]
        query = torch.randn(LAYERS, sum(counts), HEADS, DIM, generator=self.generator)
        lengths = [start + count for start, count in zip(before, counts, strict=True)]
        for slot, start, end, wrong in zip(slots, before, lengths, rejected, strict=True):
            self.write(slot, start, end, wrong)
            self.length[slot] = end - wrong
        starts = torch.tensor([0, *counts]).cumsum(0).int()
        compact = torch.tensor([0, *(1 if read else n for read, n in zip(reading, counts, strict=True)), 0])
        seq_lens = torch.tensor([*lengths, 0]).int()
        for part, layers in enumerate(PARTS):
            table = torch.cat([self.tables[part, slots], torch.zeros_like(self.tables[part, :1])])
            self.kv.prepare(ScoredRows(compact.cumsum(0).int(), seq_lens, table, None, False), layers, self.block_size)
        for layer in range(LAYERS):
            places = torch.cat(
                [
                    self.slots_of(self.part(layer), slot, torch.arange(start, end))
                    for slot, start, end in zip(slots, before, lengths, strict=True)
                ]
            )
            padded = torch.cat([places, torch.tensor([-1, -1])])
            self.kv.of_layer(layer).verified(query[layer], self.cache[layer], padded, PARAMS)
        batch = SimpleNamespace(
            num_reqs=len(slots),
            idx_mapping=torch.tensor(slots).int(),
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
                self.engine.release(slot)
            return
        self.kv.choose()
        asking = torch.randn(len(slots) + 1, HEADS, DIM, generator=self.generator)
        for layer in range(LAYERS):
            part = self.part(layer)
            table = torch.cat([self.tables[part, slots], torch.zeros_like(self.tables[part, :1])])
            seen = torch.tensor([*(self.length[slot] + 1 for slot in slots), 0]).int()
            got = self.kv.of_layer(layer).chosen(asking, self.cache[layer], table, seen, PARAMS)
            for place, (slot, read) in enumerate(zip(slots, reading, strict=True)):
                if self.length[slot] < self.prompt[slot]:
                    continue
                count = 1 if read else counts[place]
                prefix = lengths[place] - count + 1
                if layer == 0:
                    last = query[-1, starts[place + 1] - 1 - rejected[place]]
                    self.engine.verify(slot, prefix, self.length[slot], last)
                chosen = self.engine.read(layer, slot, prefix, asking[place])
                assert int(self.kv.prefix_lens[place]) == prefix
                assert int(self.kv.counts[place]) == chosen.shape[1]
                recent = torch.arange(prefix, prefix + self.kv.tail)
                for head in range(KV_HEADS):
                    position = torch.cat([chosen[min(head, len(chosen) - 1)], recent])
                    position = position[position < MOST]
                    listed = got[place, min(head, got.shape[1] - 1), : len(position)]
                    assert listed.tolist() == self.slots_of(part, slot, position).tolist()


class Embedded:
    """The policy over keys that lie densely, asked for one request at a time."""

    def __init__(self, config, keys):
        self.config, self.keys = config, keys
        self.policy = reserved(config, list(keys))
        self.answers = {}
        self.known = {}

    def release(self, slot):
        self.policy.release(slot)
        self.known.pop(slot, None)

    def verify(self, slot, prefix, seen, last):
        views = [dense(keys, SLOTS) for keys in self.keys]
        for layer, view in enumerate(views):
            self.policy.observe(layer, view, places(view, slot, self.known.get(slot, 0), prefix))
        self.known[slot] = prefix
        if self.policy.per_step:
            return
        own = [SimpleNamespace(read=lambda _, most, keys=keys: iter([keys[slot, :, :most]])) for keys in self.keys]
        queries = Queries(last[:, None], 0.25, PARAMS.sinks)
        asked = verified(own, self.policy, [prefix], slots=[slot], queries=queries, num_accepted=[seen - prefix])
        self.answers[slot] = self.policy.select(asked)

    def read(self, layer, slot, prefix, query):
        if self.policy.per_step:
            view = DenseKeys(self.keys[layer], [slot])
            queries = Queries(query[:, None], 0.25, PARAMS.sinks)
            answer = self.policy.select_step(layer, drafting(view, self.policy, queries, [prefix]))[0]
        else:
            answer = self.answers[slot][min(layer, len(self.answers[slot]) - 1), 0]
        return answer[:, : int((answer[0] != NO_POSITION).sum())]


POLICIES = ["stream", "quest", "specextend", f"{__name__}:PerLayer"]


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("policy", POLICIES)
def test_requests_that_come_and_go(policy, block_size):
    """Schedules of their own, prompts in chunks, another order of the batch, a slot's next request, plain steps."""
    engine = Paged(policy, block_size, seed=block_size)
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
    engine.begin(0, 97, cached=96)
    for _ in range(REFRESH_INTERVAL + 2):
        engine.step({0: 1, 2: GAMMA + 1})


def test_the_profiles_cache_is_let_go():
    """VLLM measures graphs over a small cache, then divides the layers of the real one."""
    engine = Paged("specextend")
    engine.begin(0, 100)
    engine.step({0: 100})
    assert engine.kv.last is not None
    engine.kv.divide(PARTS)
    assert engine.kv.last is None


def test_a_retrieval_at_every_eighth_iteration(monkeypatch):
    """And none for a prompt that has not been read to its end: reading a layer's keys again is what costs."""
    engine, looked, read = Paged("specextend"), [], PagedKeys.read
    monkeypatch.setattr(PagedKeys, "read", lambda *args: (looked.append(turn), read(*args))[1])
    engine.begin(1, 100)
    turn = -2
    engine.step({1: 60})
    turn = -1
    engine.step({1: 40})
    for turn in range(2 * REFRESH_INTERVAL):  # noqa: B007
        engine.step({1: GAMMA + 1})
    assert looked == [-1, 7, 15]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_of_the_engines_own_changes_nothing(policy):
    """One that warms up, or keeps other ranks company, is laid out and forgets nothing of the requests."""
    engine = Paged(policy, seed=2)
    engine.begin(0, 100)
    engine.step({0: 100})
    step = ScoredRows(torch.tensor([0, 1, 2]).int(), torch.tensor([1, 1]).int(), engine.tables[0, :2], None, False)
    engine.kv.prepare(step, PARTS[0], 16)
    engine.kv.choose()
    engine.step({0: GAMMA + 1})


@pytest.mark.parametrize("policy", POLICIES)
def test_buffers_keep_their_addresses(policy):
    """What a CUDA graph reads stays where it was, from step to step."""
    engine = Paged(policy)
    engine.begin(0, 100)
    engine.step({0: 100})
    held = [engine.kv.slots, engine.kv.counts, engine.kv.prefix_lens, engine.kv.queries]
    where = [tensor.data_ptr() for tensor in held]
    engine.step({0: GAMMA + 1})
    now = [engine.kv.slots, engine.kv.counts, engine.kv.prefix_lens, engine.kv.queries]
    assert [tensor.data_ptr() for tensor in now] == where
    assert engine.kv.num_bytes >= sum(tensor.nbytes for tensor in now) - engine.kv.prefix_lens.nbytes
