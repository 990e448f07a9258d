"""What the log says when Vegas is on."""

from __future__ import annotations

from typing import Any

from vegas_spec.config import VegasConfig
from vegas_spec.pacing.step_pacer import StepPacer
from vegas_spec.policies import policy_class
from vegas_spec.vllm.start import hooks
from vegas_spec.vllm.worker.draft_kv import DraftKV


def _logger() -> Any:
    from vllm.logger import init_logger

    return init_logger("vllm.vegas")


def warn_if_untested() -> None:
    """Say so once where every hook fits but nobody has tried this version."""
    import vllm

    if not vllm.__version__.startswith(hooks.TESTED_VERSIONS):
        _logger().warning(
            "vegas was tested with vLLM %s; this is %s, where every hook fits",
            ", ".join(hooks.TESTED_VERSIONS),
            vllm.__version__,
        )


def describe(
    config: VegasConfig, draft_kv: DraftKV | None, selecting: int, layers: int, graphs: str, logits_bytes: int
) -> str:
    """One line: what is drafted, over what, by what means, in how much memory."""
    num_bytes = logits_bytes
    if draft_kv is not None:
        num_bytes += draft_kv.num_bytes
        most = f", at most {draft_kv.most}"
        policy = policy_class(config.policy)
        scored = f" ({config.score} of {config.rows} rows per {config.granularity})" if policy.scores else ""
        chosen = policy.summary + scored
        reads = (
            f"{selecting} of {layers} layers draft over {config.kv_budget:.3g} of the context (at least "
            f"{config.kv_budget_min} tokens{most}), {chosen}"
        )
    else:
        reads = f"{layers} layers draft over the whole context"
    return (
        f"vegas active: policy {config.policy}, {config.num_speculative_tokens} drafts per step; {reads}; "
        f"draft loop {graphs}; {num_bytes / 2**30:.2f} GiB of buffers"
    )


def announce(
    config: VegasConfig, draft_kv: DraftKV | None, selecting: int, layers: int, graphs: str, logits_bytes: int
) -> None:
    """Log `describe`."""
    _logger().info("%s", describe(config, draft_kv, selecting, layers, graphs, logits_bytes))


def announce_pacing(pacer: StepPacer, max_num_seqs: int) -> None:
    """Log among which numbers of drafts the scheduler chooses, and from which context on some are expected to gain."""
    single, full = (pacer.shortest_gaining_context(batch) for batch in (1, max_num_seqs))
    where = f"expected to gain from {single} tokens of context for one request, from {full} each for {max_num_seqs}"
    off = '; set "fall_back": false to draft always' if 0 in pacer.gammas else ""
    _logger().info("vegas drafts what gains, of %s tokens per step: %s%s", pacer.gammas, where, off)
