"""What runs beside the GPU: the speculator, what drafts read, attention backends, CUDA graphs."""
