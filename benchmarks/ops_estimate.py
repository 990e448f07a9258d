"""What the one-pass estimate of the LSE, and 12-bit levels, change in the selection, on a real model's attention.

    python benchmarks/ops_estimate.py MODEL --documents long_documents.jsonl --out benchmarks/results/ops_estimate.json

The prompt's last seven rows stand for a verification; its first and last row score the prefix. For every layer and KV
head: the share of the exactly selected positions that the kernel's selection has too, and the softmax weight that each
of the two sets of positions catches, averaged over the rows that come after the scored ones would (here: the scored
rows themselves). The kernel's score is `vegas_spec.ops.verify_attention.reference`, float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

from vegas_spec.config import VegasConfig
from vegas_spec.environment import environment
from vegas_spec.ops.levels import to_levels
from vegas_spec.ops.verify_kernel import SAMPLE_FIRST, SAMPLE_KEYS
from vegas_spec.selection import select_positions

ROWS = 7


def compare(query: Tensor, key: Tensor, scale: float) -> list[dict[str, float]]:
    """Agreement of the exact and the estimated selection, per KV head; shapes ``[heads, rows, dim]``."""
    heads, kv_heads, total = query.shape[0], key.shape[0], key.shape[1]
    prefix = total - ROWS + 1
    ends = query[:, [-ROWS, -1]].float().view(kv_heads, -1, query.shape[2])
    logits = scale * ends @ key.float().transpose(1, 2)
    last_seen = torch.tensor([prefix - 1, total - 1]).repeat(heads // kv_heads)
    position = torch.arange(total)
    visible = position <= last_seen[:, None]
    logits = logits.masked_fill(~visible, -torch.inf)
    sample = (position < SAMPLE_FIRST) | (position >= total - (SAMPLE_KEYS - SAMPLE_FIRST))
    exact_lse = logits.logsumexp(-1, keepdim=True)
    estimate = logits.masked_fill(~sample, -torch.inf).logsumexp(-1, keepdim=True)
    weights = (logits - exact_lse).exp()[..., :prefix]
    exact = weights.sum(1)
    levels = to_levels((logits - estimate).exp()[..., :prefix].sum(1).log2(), "weight").float()
    count = torch.tensor([VegasConfig().budget(prefix)])
    lens = torch.tensor([prefix])
    chosen = select_positions(exact[None], lens, count)[0]
    estimated = select_positions(levels[None], lens, count)[0]
    rows = []
    for head in range(kv_heads):
        both = torch.isin(estimated[head], chosen[head]).float().mean()
        caught, best = (weights[head][:, picked[head]].sum(-1).mean() for picked in (estimated, chosen))
        gap = (exact_lse - estimate)[head].mean()
        rows.append({"agreement": float(both), "caught": float(caught), "caught_exact": float(best), "gap": float(gap)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--documents", type=Path, required=True, help="JSONL file of long documents")
    parser.add_argument("--num-documents", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    found: list[dict[str, float]] = []

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        found.extend(compare(query[0], key[0], options["scaling"]))
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("compare_selections", attend)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, attn_implementation="compare_selections", dtype=torch.bfloat16
    )
    texts = [json.loads(text)["text"] for text in arguments.documents.read_text(encoding="utf-8").splitlines()]
    texts = [text for text in texts if len(text) > 6 * arguments.tokens][: arguments.num_documents]
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids[:, : arguments.tokens]
        with torch.inference_mode():
            model.model(ids, use_cache=False)
    summary = {
        "prompts": len(texts),
        "tokens": arguments.tokens,
        "pairs": len(found),
        **{name: statistics.mean(row[name] for row in found) for name in found[0]},
        "agreement_lowest_decile": sorted(row["agreement"] for row in found)[len(found) // 10],
        "caught_loss_largest": max(row["caught_exact"] - row["caught"] for row in found),
    }
    print(json.dumps(summary, indent=1))
    if arguments.out:
        result = {"environment": environment(), "model": Path(arguments.model).name, **summary}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
