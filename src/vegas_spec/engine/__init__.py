"""The embedded engine: Vegas on any supported transformers model, on a CPU or one GPU."""
