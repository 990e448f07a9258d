"""Top-k, top-p and min-p of a draft's logits, by a threshold per row that costs no sort."""

from __future__ import annotations

import torch
from torch import Tensor

from vegas_spec.ops.checks import FLOATS, check_contiguous, check_last_dim, check_tensor
from vegas_spec.ops.truncate_kernel import truncate_kernel

REACH = 32.0
"""How far below the best token thresholds are looked for, in units of the temperature: ``exp(-32)`` is nothing."""

STEP = 2.0**-7
"""Distance of neighbouring thresholds in the same units, 0.8 % of a probability; exact in float32. Chosen by hand."""

BLOCK = 8192
"""Tokens per step of a program. Chosen by hand; not measured yet."""


def truncate_logits(
    logits: Tensor, states: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """Mask, in place, what top-k, top-p and min-p would leave out, to within a step of a grid.

    With ``s = states[b]``, ``d[b, v] = (logits[b, v] - max_v logits[b, v]) / temperature[s]`` and thresholds
    ``g[i] = i / 128 - 32`` for ``1 <= i < 4096``:

    - ``m = log(min_p[s])`` if ``min_p[s] > 0``, else ``-inf``
    - ``c`` = the larger of ``m`` and the highest ``g[i]`` that at least ``top_k[s]`` tokens reach (``-inf`` if none)
    - ``t`` = the larger of ``c`` and the highest ``g[i]`` with ``sum(exp(d[b, v]) : d[b, v] >= max(c, g[i])) >=
      top_p[s] * sum(exp(d[b, v]) : d[b, v] >= c)`` (``-inf`` if none)
    - ``logits[b, v] = -inf`` where ``d[b, v] < t``

    All tokens stay that the exact rules keep; beyond these only such stay as are less than 1/128 below one that is
    kept, or as tie, and what top-p needs besides where top-k has let such a one stay. A draft may be truncated in any
    way, as long as it is verified by the very distribution that it was drawn from: how near this one comes to the
    target's only decides how much is accepted.

    Parameters
    ----------
    logits : Tensor
        Shape ``[batch, vocabulary]``, contiguous in its last dimension; changed.
    states : Tensor
        Where each row's parameters stand, int64, shape ``[batch]``; a negative one leaves its row alone. Read on the
        device.
    temperature, top_p, min_p : Tensor
        float32, shape ``[states]``. A row of temperature 0 is left alone.
    top_k : Tensor
        int32, shape ``[states]``; the vocabulary's size for no limit.

    Returns
    -------
    Tensor
        `logits`.

    Notes
    -----
    Safe in CUDA graphs, allocates nothing; a row that asks for nothing costs next to nothing. On a CPU the plain-torch
    `reference` runs.

    """
    batch, device = logits.shape[0], logits.device
    check_tensor("logits", logits, (None, None), FLOATS, device)
    check_last_dim("logits", logits)
    check_tensor("states", states, (batch,), (torch.int64,), device)
    check_contiguous("states", states)
    for name, tensor in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        check_tensor(name, tensor, temperature.shape, (torch.float32,), device)
        check_contiguous(name, tensor)
    check_tensor("top_k", top_k, temperature.shape, (torch.int32,), device)
    check_contiguous("top_k", top_k)
    run = launch if device.type == "cuda" else reference
    run(logits, states, temperature, top_k, top_p, min_p)
    return logits


def launch(logits: Tensor, states: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Run the Triton kernel."""
    batch, vocab_size = logits.shape
    truncate_kernel[(batch,)](
        logits, logits.stride(0), states, temperature, top_k, top_p, min_p, vocab_size,
        REACH=REACH, STEP=STEP, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip


def reference(logits: Tensor, states: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """The definition in plain torch, row by row."""
    vocab_size = logits.shape[1]
    grid = torch.arange(1, int(REACH / STEP), dtype=torch.float32, device=logits.device) * STEP - REACH
    for row, state in enumerate(states.tolist()):
        if state < 0:
            continue
        heat, count = float(temperature[state]), int(top_k[state])
        mass, least = float(top_p[state]), float(min_p[state])
        asked = count < vocab_size or mass < 1 or least > 0
        if heat == 0 or not asked or not bool((logits[row] > -torch.inf).any()):
            continue
        values = logits[row].float()
        distance = (values - values.max()) / heat
        floor = torch.tensor(least if least > 0 else 0.0, device=logits.device).log()
        if count < vocab_size:
            floor = torch.maximum(floor, _highest(distance, torch.ones_like(distance), grid, float(count)))
        if mass < 1:
            weight = distance.exp().where(distance >= floor, 0.0)
            floor = torch.maximum(floor, _highest(distance, weight, grid, mass * float(weight.sum())))
        logits[row, distance < floor] = -torch.inf


def _highest(distance: Tensor, weight: Tensor, grid: Tensor, wanted: float) -> Tensor:
    """The highest threshold that tokens of this weight together still reach; -inf if none."""
    below = torch.bucketize(distance, grid, right=True)
    per_bucket = torch.zeros(len(grid) + 1, device=grid.device).index_add_(0, below, weight)
    reaching = (per_bucket.flip(0).cumsum(0).flip(0)[1:] >= wanted).nonzero()
    return grid[reaching[-1, 0]] if len(reaching) else torch.full_like(grid[0], -torch.inf)
