"""Numbers the way people write them."""

from __future__ import annotations


def count_text(count: int, noun: str) -> str:
    """Write how many there are: 1 prompt, 2 prompts."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def tokens_text(count: int) -> str:
    """Write a number of tokens: 512; 16K for 16,384 and for 16,000; 1.5K."""
    if count < 1000:
        return str(count)
    thousands = count / (1024 if count % 512 == 0 else 1000)
    return f"{thousands:.0f}K" if thousands >= 10 or thousands.is_integer() else f"{thousands:.1f}K"
