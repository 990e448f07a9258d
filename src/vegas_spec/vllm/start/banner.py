"""What the log says when Vegas is on."""

from __future__ import annotations

from typing import Any

from vegas_spec.config import VegasConfig
from vegas_spec.pacing.step_pacer import StepPacer
from vegas_spec.policies import make_policy
from vegas_spec.vllm.start import hooks
from vegas_spec.vllm.worker.draft_kv import DraftKV
from vegas_spec.vllm.worker.memory import DRAFT_KV_SHARE


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
        policy = make_policy(config)
        asked = policy.score_request
        ahead = f", looking ahead by {asked.lookahead:g}" if asked and asked.lookahead else ""
        scored = f" ({asked.score} of {asked.rows} rows per {asked.granularity}{ahead})" if asked else ""
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
    """Log `describe`; warn where memory has cut the budget."""
    _logger().info("%s", describe(config, draft_kv, selecting, layers, graphs, logits_bytes))
    cut = None if draft_kv is None else cut_budget(config, draft_kv)
    if cut:
        _logger().warning("%s", cut)


def cut_budget(config: VegasConfig, draft_kv: DraftKV) -> str | None:
    """What is not read because the lists would take too much memory; None if nothing is."""
    sizes = draft_kv.sizes
    wanted = config.budget(sizes.max_model_len)
    if draft_kv.most >= wanted:
        return None
    return (
        f"drafts over contexts of {sizes.max_model_len} tokens read {draft_kv.most} entries instead of {wanted}: "
        f"lists for {sizes.max_requests} requests may take {DRAFT_KV_SHARE:.0%} of the device's memory. With a smaller "
        "max_num_seqs or max_model_len they read what was asked for"
    )


def announce_pacing(pacer: StepPacer, max_num_seqs: int) -> None:
    """Log among which numbers of drafts the scheduler chooses, and from which context on some are expected to gain."""
    single, full = (pacer.shortest_gaining_context(batch) for batch in (1, max_num_seqs))
    where = f"expected to gain from {single} tokens of context for one request, from {full} each for {max_num_seqs}"
    off = '; set "fall_back": false to draft always' if 0 in pacer.gammas else ""
    _logger().info("vegas drafts what gains, of %s tokens per step: %s%s", pacer.gammas, where, off)
