"""What runs in the engine core, beside vLLM's scheduler: how much to draft, counts, metrics."""
