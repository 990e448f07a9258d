"""What is measured: acceptance, decoding speed, kernels; in the embedded engine and in vLLM."""
