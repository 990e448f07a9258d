"""An inspection of any size, made up: words, sinks that all sets hold, and places that drift."""

from __future__ import annotations

import math
from typing import Any

import torch

from vegas_bench.inspect.observe import Inspection, Look
from vegas_bench.inspect.trace import TraceSummary
from vegas_spec.config import VegasConfig
from vegas_spec.engine.outputs import CompletionOutput, RequestOutput, RequestStats

WORDS = (
    "def ",
    "the ",
    "cache",
    " of ",
    "\n",
    "\t",
    "return ",
    "<b>",
    "naïve ",
    "🙂",
    "·",
    "&amp; ",
    "token ",
    "</script>",
)


def inspection(
    tokens: int = 600,
    prompt: int = 560,
    layers: int = 4,
    heads: int = 2,
    looks: int = 6,
    texts: list[str] | None = None,
) -> Inspection:
    draw = torch.Generator().manual_seed(0)
    config = VegasConfig(kv_budget=0.05, kv_budget_min=16)
    scores = torch.rand(layers, heads, tokens, generator=draw)
    scores[..., :4] = 9
    scores[..., tokens // 3 : tokens // 3 + tokens // 40] += 0.6 * torch.rand(layers, heads, 1, generator=draw)
    found: list[Look] = []
    before = first = None
    for number in range(looks):
        prefix = prompt + number * (tokens - prompt) // looks
        scores += 0.02 * torch.randn(scores.shape, generator=draw)
        positions = scores[..., :prefix].topk(config.budget(prefix)).indices.sort().values.int()
        sets = torch.zeros(layers, heads, tokens, dtype=torch.bool).scatter_(-1, positions.long(), True)
        first = sets if first is None else first
        unknown = torch.full((layers, heads), math.nan)
        recall = 0.5 + 0.4 * torch.rand(layers, heads, generator=draw)
        found.append(
            Look(
                number=number,
                prefix_len=prefix,
                drafted=6,
                accepted=3 + number % 4,
                positions=positions,
                kept=unknown if before is None else (sets & before).sum(-1) / sets.sum(-1),
                of_first=(sets & first).sum(-1) / sets.sum(-1),
                recall=recall,
                mass=recall.sqrt() - 0.02,
                oracle_mass=recall.sqrt() + 0.03,
            )
        )
        before = sets
    return Inspection(
        model="Imaginary-0.5B",
        config=config.to_dict(),
        texts=[(texts or WORDS)[place % len(texts or WORDS)] for place in range(tokens)],
        prompt_tokens=prompt,
        layers=tuple(range(layers)),
        looks=found,
        summary=TraceSummary(looks, 0.71, 0.84, 0.9, 0.8, {0: 0.7}, {0: 0.8}, [0.7], [0.6], [0.5]),
        output=output(prompt, tokens - prompt),
    )


def output(prompt: int, generated: int) -> Any:
    stats = RequestStats(6, iterations=7, drafts=6, drafted=36, accepted=27)
    completion = CompletionOutput(0, "", [5] * generated, ["accepted"] * generated)
    return RequestOutput("0", None, [5] * prompt, [completion], stats, finished=True)
