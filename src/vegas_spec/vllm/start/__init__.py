"""What runs once in every process of vLLM: registration, options, refusals, what is replaced, the banner."""
