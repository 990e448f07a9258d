"""Kernels: verification that scores as it goes, selection, the draft's sparse attention, and truncation of its logits.

An op has two files: its public function with the plain-torch reference, and in ``..._kernel.py`` its Triton kernel.
`VerifyPlan` and `SparseWorkspace` own what a CUDA graph must find at the same address; the ops allocate nothing.
"""

from vegas_spec.ops.plan import VerifyPlan
from vegas_spec.ops.select_kv import select_kv
from vegas_spec.ops.sparse_attention import SparseWorkspace, sparse_attention
from vegas_spec.ops.truncate_logits import truncate_logits
from vegas_spec.ops.verify_attention import verify_attention

__all__ = ["SparseWorkspace", "VerifyPlan", "select_kv", "sparse_attention", "truncate_logits", "verify_attention"]
