"""The vLLM plugin: adapter code between vLLM's V2 model runner and the method.

`plugin.register` is the entry point. vLLM's forward pass verifies (an attention backend collects scores and selects,
layer by layer), its sampler accepts, and `speculator.VegasSpeculator` drafts. Nothing here imports vLLM when it is
imported itself, except the modules that subclass vLLM's classes: ``speculator``, ``draft_graphs``, ``cpu_attention``.
"""
