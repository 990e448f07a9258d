"""The vLLM plugin: adapter code between vLLM's V2 model runner and the method.

`start.plugin.register` is the entry point. vLLM's forward pass verifies (an attention backend collects scores and
selects, layer by layer), its sampler accepts, and `worker.speculator.VegasSpeculator` drafts. Only modules that
subclass vLLM's classes import vLLM when they are imported themselves.
"""
