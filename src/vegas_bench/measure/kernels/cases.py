"""Shapes that kernels are measured at: one layer of a model, at a batch and context."""

from __future__ import annotations

from dataclasses import dataclass

from vegas_spec.config import VegasConfig

QUERY_LEN = 7
"""Rows that a verification has: six drafts and the token before."""

TAIL = 12
"""Entries since the prefix that a draft step reads at most: two iterations' rows."""

BLOCK_SIZE = 16
"""Tokens of a page of the cache, as vLLM's default has it."""


@dataclass(frozen=True)
class Case:
    """One layer's shape, batch and context."""

    model: str
    heads: int
    kv_heads: int
    head_dim: int
    batch: int
    context: int

    @property
    def name(self) -> str:
        """Model, batch and context."""
        return f"{self.model} {self.batch} x {self.context // 1024}K"

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token, in bytes."""
        return 4 * self.kv_heads * self.head_dim

    def budget(self, share: float) -> int:
        """KV entries of a draft step, with the other bounds as shipped."""
        return VegasConfig(kv_budget=share).budget(self.context)


CASES = (
    Case("Qwen3-8B", 32, 8, 128, 16, 16_384),
    Case("Qwen3-8B", 32, 8, 128, 32, 16_384),
    Case("Qwen3-8B", 32, 8, 128, 16, 32_768),
    Case("Qwen3-8B", 32, 8, 128, 4, 131_072),
    Case("Qwen3-8B", 32, 8, 128, 1, 131_072),
    Case("Qwen3-8B", 32, 8, 128, 64, 8_192),
    Case("Qwen3-1.7B", 16, 8, 128, 16, 32_768),
    Case("Qwen2.5-1.5B", 12, 2, 128, 32, 28_672),
    Case("gpt-oss-20b", 64, 8, 64, 16, 32_768),
)
