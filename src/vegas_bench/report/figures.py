"""Tables and plots of the documentation, from stored results: ``python -m vegas_bench.report.figures`` in a checkout.

A table stands in a Markdown file between ``<!-- figures: NAME -->`` and ``<!-- end -->``. What is there is replaced by
what `FIGURES` makes of the files in ``benchmarks/results``; the sentences around it are written by hand. `PICTURES` are
plots of a result's report, written to ``docs/images``.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from vegas_bench import claims
from vegas_bench.report.loading import load_sources
from vegas_bench.report.page import make_report
from vegas_bench.results.results import ThroughputRow, load, read_json
from vegas_bench.results.summary import BASELINE, REFERENCE, Point, policy_name, summarise
from vegas_bench.results.wording import tokens_text

_BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.S)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def _pairs(file: Path) -> list[tuple[ThroughputRow, ThroughputRow]]:
    """Rows of the reference, whatever its options, each with plain decoding's of the same shape."""
    rows: list[ThroughputRow] = load(file).rows
    ours = [row for row in rows if policy_name(row.policy) == REFERENCE]
    plain = {(row.context, row.batch, row.temperature): row for row in rows if row.policy == BASELINE}
    return [(row, plain[row.context, row.batch, row.temperature]) for row in ours]


def _speeds(row: ThroughputRow, plain: ThroughputRow) -> list[str]:
    return [f"{plain.median:.0f}", f"{row.median:.0f}", f"{row.median / plain.median:.2f}"]


def _shape(row: ThroughputRow) -> str:
    return f"{tokens_text(row.context)} x {row.batch}"


def _accepted(row: ThroughputRow) -> str:
    return "falls back" if row.accepted_per_iteration is None else f"{row.accepted_per_iteration:.2f}"


def _phases(row: ThroughputRow) -> list[str]:
    """An iteration, its drafts, and the rest."""
    times = row.milliseconds
    return [f"{time:.1f} ms" for time in (sum(times.values()), *times.values())] if times else [""] * 3


def throughput(results: Path) -> str:
    """Both models; the real one where it drafts."""
    files = {
        "throughput_1.5b.json": ("Qwen2.5-Coder-1.5B", "source and long documents"),
        "vllm_decode_8b.json": ("Qwen3-8B shapes", "random weights, acceptance imposed"),
    }
    lines = []
    for file, (model, text) in files.items():
        name = f"{model}, {text}"
        for row, plain in _pairs(results / file):
            if row.accepted_per_iteration is not None or model.endswith("shapes"):
                *speeds, ratio = _speeds(row, plain)
                gain = f"**{ratio} x**" if float(ratio) > 1.5 else f"{ratio} x"
                lines.append([name, _shape(row), f"{row.temperature:g}", _accepted(row), *speeds, gain])
                name = ""
    return markdown_table(["model", "context x requests", "temperature", "accepted of 6", "stock", "Vegas", ""], lines)


def vllm_model(results: Path) -> str:
    """The real model where it drafts, by temperature."""
    columns = ["temperature", "stock", "Vegas", "speed-up", "accepted of 6", "an iteration", "its six draft steps"]
    pairs = [pair for pair in _pairs(results / "throughput_1.5b.json") if pair[0].accepted_per_iteration]
    lines = ([f"{row.temperature:g}", *_speeds(row, plain), _accepted(row), *_phases(row)] for row, plain in pairs)
    return markdown_table([*columns, "verification, sampling and the rest"], lines)


def vllm_shapes(results: Path) -> str:
    """Shapes with random weights, by context and batch."""
    columns = ["context x requests", "stock", "Vegas", "speed-up", "memory-bound prediction", "accepted of 6"]
    lines = []
    for row, plain in _pairs(results / "vllm_decode_8b.json"):
        bound = "" if row.predicted_speedup is None else f"{row.predicted_speedup:.2f}"
        lines.append([_shape(row), *_speeds(row, plain), bound, _accepted(row), *_phases(row)])
    return markdown_table([*columns, "an iteration", "its six draft steps", "the rest"], lines)


def engine_cpu(results: Path) -> str:
    """The embedded engine on a CPU."""
    data = read_json(results / "engine_cpu.json")
    plain, phases, memory = data["plain_decoding"], data["phases"], data["peak_memory"]
    speed, pairs = plain["speed_against_transformers"], len(plain["engine_ms_per_token"])
    short, long, most = (tokens_text(part["context"]) for part in (plain, phases, memory))
    overhead = 100 * phases["collect_and_select_share_of_verification"]
    lines = {
        f"plain decoding, {short} context, against `transformers.generate`": (
            f"{speed['median']:.2f} times as fast ({speed['low']:.2f} to {speed['high']:.2f} in {pairs} pairs)"
        ),
        f"a draft step at {long}, against a plain step": f"{phases['draft_step_over_plain_step']:.2f} of its time",
        f"collecting scores and selecting at {long}, against a verification": f"{overhead:.0f} % on top",
        f"peak memory at {most}, against `transformers.generate`": f"{memory['engine_over_transformers']:.2f}",
    }
    return markdown_table(["", ""], lines.items())


def acceptance(file: str) -> Callable[[Path], str]:
    """All policies of a file, by kind of text."""

    def table(results: Path) -> str:
        rows = load(results / file).rows
        kinds = list(dict.fromkeys(row.kind for row in rows))
        lines = []
        for each in summarise(rows):
            own = [row for row in rows if row.policy == each.policy]
            means = [statistics.fmean(r.accepted_per_iteration for r in own if r.kind == kind) for kind in kinds]
            cells = [f"`{each.policy}`", str(each.accepted), *(f"{mean:.2f}" for mean in means)]
            lines.append([*cells, f"{each.lowest:.2f} to {each.highest:.2f}", f"{100 * each.draft_kv_share:.1f} %"])
        columns = ["policy", "accepted of 6 [95 %]", *kinds, "hardest to easiest prompt", "cache read"]
        return markdown_table(columns, lines)

    return table


def sweeps(results: Path) -> str:
    """Means by draft length and budget."""
    means: dict[str, dict[Point, str]] = {}
    for each in summarise(load(results / "acceptance_sweeps_0.5b_cpu.json").rows):
        point = Point(each.num_speculative_tokens, each.kv_budget)
        means.setdefault(each.policy, {})[point] = f"{each.accepted.mean:.2f}"
    points = sorted({point for own in means.values() for point in own}, key=lambda at: (at.gamma, at.budget))
    lines = ([f"`{policy}`", *(own[point] for point in points)] for policy, own in means.items())
    return markdown_table(["policy", *map(str, points)], lines)


def kernels_verify(results: Path) -> str:
    """Verification in milliseconds and selection in microseconds, beside FlashAttention 3 and torch.topk."""
    columns = ["case", "floor", "FA3", "verify, no scores", "`weight`", "`logit`", "select, us", "torch.topk, us"]
    lines = []
    for row in load(results / "ops.json").rows:
        times, base = row.milliseconds, row.milliseconds["fa3"]
        verify = [times[f"verify_{name}"] for name in ("plain", "weight", "logit")]
        cells = [row.case, f"{times['floor']:.3f}", f"{base:.3f}", *(f"{t:.3f} ({t / base:.3f})" for t in verify)]
        cells += [f"{1e3 * times['select_weight']:.1f}", f"{1e3 * times['torch_topk']:.0f}"]
        whole = [times[f"verify_select_{name}"] for name in ("weight", "logit")]
        lines.append([*cells, *(f"{100 * (time / base - 1):.1f} %" for time in whole)])
    return markdown_table([*columns, "overhead `weight`", "`logit`"], lines)


def kernels_draft(results: Path) -> str:
    """A draft step's attention in microseconds, and what it is of its floor."""
    columns = ["case", "5 %: floor", "`sparse_attention`", "one list for all heads", "FA3, page size 1"]
    lines = []
    for row in load(results / "ops.json").rows:
        cells = [row.case]
        for share in ("5%", "7%"):
            floor, ours, layer, fa3 = (
                1e3 * row.milliseconds[f"{name}_{share}"]
                for name in ("sparse_floor", "sparse_kv_head", "sparse_layer", "fa3_page_1")
            )
            cells += [f"{floor:.1f}", f"{ours:.1f} ({ours / floor:.2f})"]
            cells += [f"{layer:.1f}"] if share == "5%" else []
            cells += [f"{fa3:.1f} ({fa3 / floor:.2f})"]
        lines.append(cells)
    return markdown_table([*columns, "7 %: floor", "`sparse_attention`", "FA3, page size 1"], lines)


def kernels_defaults(results: Path) -> str:
    """What a token costs by the options of scoring: measured acceptance, kernels' times, a stock step of 22.5 ms."""
    times = next(row.milliseconds for row in load(results / "ops.json").rows if row.case == "Qwen3-8B 16 x 32K")
    accepted = {each.policy: each.accepted.mean for each in summarise(load(results / "acceptance_h200.json").rows)}
    step, layers, drafts = 22.5, 36, 6
    rest = step - layers * times["fa3"]
    lines = []
    for label in ("", ":rows=all", ":granularity=layer", ":score=logit", ":score=logit:granularity=layer"):
        options = {"score": "weight", "rows": "ends", "granularity": "kv_head"}
        options |= dict(part.split("=") for part in label.split(":") if part)
        verify = times[f"verify_{options['score']}"] + times[f"select_{options['score']}"]
        draft = rest + layers * times[f"sparse_{options['granularity']}_5%"]
        iteration, mean = rest + layers * verify + drafts * draft, accepted[f"vegas{label}"]
        token = iteration / (mean + 1)
        name = ", ".join(f"`{value}`" for value in options.values())
        lines.append([name, f"{mean:.2f}", f"{iteration:.1f}", f"{token:.1f}", f"{step / token:.2f} x"])
    columns = ["score, rows, granularity", "accepted of 6", "iteration, ms", "ms per token", "against stock"]
    return markdown_table(columns, lines)


FIGURES: dict[str, Callable[[Path], str]] = {
    "throughput": throughput,
    "vllm-model": vllm_model,
    "vllm-shapes": vllm_shapes,
    "engine-cpu": engine_cpu,
    "acceptance-0.5b": acceptance("acceptance_0.5b_cpu.json"),
    "acceptance-1.5b": acceptance("acceptance_1.5b_cpu.json"),
    "acceptance-lookahead": acceptance("acceptance_lookahead_1.5b_h200.json"),
    "acceptance-sweeps": sweeps,
    "kernels-verify": kernels_verify,
    "kernels-draft": kernels_draft,
    "kernels-defaults": kernels_defaults,
    "claims": lambda results: claims.markdown(load_sources(sorted(results.glob("*.json")))[0]),
}

PICTURES = {
    "acceptance.svg": ("acceptance_h200.json", "acceptance-acceptance"),
    "acceptance-0.5b.svg": ("acceptance_0.5b_cpu.json", "acceptance-acceptance"),
    "acceptance-kinds.svg": ("acceptance_0.5b_cpu.json", "acceptance-kinds"),
    "kernels-verify.svg": ("ops.json", "kernels-verify"),
    "kernels-sparse.svg": ("ops.json", "kernels-sparse-5"),
}
"""The stored result behind each picture, and the plot's name in its report."""


def filled(text: str, results: Path) -> str:
    """Give a document with the tables that these results make."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{FIGURES[block[2]](results).rstrip()}\n\n{block[3]}", text)


@functools.cache
def _plots(file: Path) -> dict[str, str]:
    """Every plot of a result's report, as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        written = make_report(load_sources([file])[0]).save_plots(Path(folder))
        return {path.stem: path.read_text(encoding="utf-8") for path in written if path.suffix == ".svg"}


def picture(name: str, results: Path) -> str:
    """Draw one of `PICTURES`, as SVG."""
    file, plot = PICTURES[name]
    return _plots(results / file)[plot]


def labels(svg: str) -> list[str]:
    """Give all that a picture says, in order. What else is in it differs from one matplotlib to the next."""
    return re.findall(r"<text[^>]*>([^<]*)<", svg)


def main() -> None:
    """Write the tables and plots of the checkout that this is run in, or check them."""
    parser = argparse.ArgumentParser(prog="python -m vegas_bench.report.figures", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is not what the files say")
    check = parser.parse_args().check
    results, images = Path("benchmarks/results"), Path("docs/images")
    documents = (Path("README.md"), *Path("docs").glob("*.md"))
    made = {file: filled(file.read_text(encoding="utf-8"), results) for file in documents}
    made |= {images / name: picture(name, results) for name in PICTURES}
    for file, new in made.items():
        if not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(new, encoding="utf-8")
        elif (labels(new) or new) != (labels(old := file.read_text(encoding="utf-8")) or old):
            sys.exit(f"{file} is not what the results say; run: python -m vegas_bench.report.figures")


if __name__ == "__main__":
    main()
