"""What the kernels cost on a GPU, beside stock FlashAttention 3, torch.topk and the bandwidth floor, in one run.

    python benchmarks/ops.py --out benchmarks/results/ops.json
    python benchmarks/ops.py --plot benchmarks/results/ops.json      # writes ops.svg beside it, needs no GPU

Per layer, bfloat16, 7 query rows, pages of 16 tokens in random order, joint K|V cache, random keys. (Values matter to
time only where scores are counted: how often counters of the same level meet.) The floor is the bytes of keys and
values over the bandwidth of a large copy.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from _bars import draw_bars
from _ops_cases import CASES, QUERY_LEN, TAIL, Case, Layer, Stock, measure

from vegas_spec.eval.environment import environment

SHARES = (0.05, 0.07)
SCORES = (None, "weight", "logit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ops.json"))
    parser.add_argument("--plot", type=Path, help="a stored result to draw, instead of a measurement")
    parser.add_argument("--only", help="measure only cases whose name contains this")
    arguments = parser.parse_args()
    if arguments.plot:
        plot(json.loads(arguments.plot.read_text()), arguments.plot.with_suffix(".svg"))
        return
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s")
    rows = []
    for case in CASES:
        if arguments.only is None or arguments.only in case.name:
            rows.append(run(case, bandwidth))
            torch.cuda.empty_cache()
    result = {"environment": environment(), "copy_bandwidth": bandwidth, "cases": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        print(line(row))


def copy_bandwidth() -> float:
    """Bytes per second, read plus written, of adding 1 to 2 GiB."""
    source = torch.zeros(1 << 30, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 2 / measure([lambda: torch.add(source, 1, out=target)]) * 1e3


def run(case: Case, bandwidth: float) -> dict[str, Any]:
    """All figures of one case, in milliseconds."""
    layer = Layer(case)
    stock = Stock(layer)
    floor = case.batch * case.context * case.token_bytes / bandwidth * 1e3
    row: dict[str, Any] = {"case": case.name, "batch": case.batch, "context": case.context, "floor": floor}
    row["fa3"] = stock.verify()
    budget = case.budget(SHARES[0])
    counts = torch.full((case.batch,), budget, dtype=torch.int32, device="cuda")
    slots = torch.zeros(case.batch, case.kv_heads, budget + TAIL, dtype=torch.int32, device="cuda")
    for score in SCORES:
        row[f"verify_{score or 'plain'}"] = measure([lambda score=score: layer.verify(score)])
        if score is not None:
            row[f"select_{score}"] = measure([lambda score=score: layer.select(counts, slots, score)])

            def both(score: str = score) -> None:
                layer.verify(score)
                layer.select(counts, slots, score)

            row[f"verify_select_{score}"] = measure([both])
    scores = torch.rand(case.batch * case.kv_heads, case.context, device="cuda")
    row["torch_topk"] = measure([lambda: torch.topk(scores, budget)])
    row["prepare"] = measure([lambda: layer.plan.prepare(layer.query_start_loc, layer.seq_lens)])
    row["scratch_bytes"] = layer.plan.scratch_bytes()
    row["scratch_bytes_per_token"] = (row["scratch_bytes"]["levels"] + row["scratch_bytes"]["histogram"]) / (
        case.batch * case.context
    )
    row["index_bytes_per_layer"] = slots.numel() * 4
    for share in SHARES:
        length = case.budget(share) + QUERY_LEN - 1
        name = f"{share:.0%}"
        row[f"sparse_floor_{name}"] = case.batch * length * case.token_bytes / bandwidth * 1e3
        for label, groups in (("kv_head", case.kv_heads), ("layer", 1)):
            lists, list_counts = layer.random_lists(share, groups, 6)
            row[f"sparse_{label}_{name}"] = measure([lambda s=s, c=list_counts: layer.sparse(s, c) for s in lists])
        row[f"fa3_page_1_{name}"] = stock.sparse(lists, length)
    # The same list of consecutive slots everywhere: what a compact buffer, gathered once per iteration, would read.
    width = case.budget(SHARES[0]) + TAIL
    first = torch.arange(case.batch * case.kv_heads, device="cuda").view(case.batch, case.kv_heads, 1) * width
    consecutive = [
        ((first + step * 977 + torch.arange(width, device="cuda")) % (case.batch * case.context)).int().contiguous()
        for step in range(6)
    ]
    row["sparse_consecutive_5%"] = measure([lambda s=s: layer.sparse(s, counts) for s in consecutive])
    return row


def line(row: dict[str, Any]) -> str:
    """One row of the table that a run prints: ratios to stock and to the floor."""
    fa3 = row["fa3"]
    overhead = {score: (row[f"verify_select_{score}"] - fa3) / fa3 for score in ("weight", "logit")}
    return (
        f"{row['case']:>22} floor {row['floor']:.3f} fa3 {fa3:.3f} | verify/fa3 plain {row['verify_plain'] / fa3:.3f} "
        f"weight {row['verify_weight'] / fa3:.3f} logit {row['verify_logit'] / fa3:.3f} | overhead "
        f"weight {overhead['weight']:.1%} logit {overhead['logit']:.1%} | select {row['select_weight'] * 1e3:.1f} us "
        f"topk {row['torch_topk'] * 1e3:.1f} us | sparse/floor "
        + " ".join(
            f"{name} {row[f'sparse_kv_head_{name}'] / row[f'sparse_floor_{name}']:.2f} "
            f"(layer {row[f'sparse_layer_{name}'] / row[f'sparse_floor_{name}']:.2f}, "
            f"fa3 {row[f'fa3_page_1_{name}'] / row[f'sparse_floor_{name}']:.2f})"
            for name in ("5%", "7%")
        )
        + f" | {row['scratch_bytes_per_token']:.1f} B/token prepare {row['prepare'] * 1e3:.1f} us"
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the share of the bandwidth floor that each kernel reaches, by case."""
    groups = {}
    for row in result["cases"]:
        groups[row["case"]] = {
            "FA3, 7 rows": row["floor"] / row["fa3"],
            "verify, scores": row["floor"] / row["verify_weight"],
            "verify + select": row["floor"] / row["verify_select_weight"],
            "FA3, page size 1, 5 %": row["sparse_floor_5%"] / row["fa3_page_1_5%"],
            "sparse, 5 %": row["sparse_floor_5%"] / row["sparse_kv_head_5%"],
        }
    env = result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in env["versions"].items() if version)
    draw_bars(path, "Share of the bandwidth floor, per layer", f"{env['hardware']}, {versions}", groups)


if __name__ == "__main__":
    main()
