"""Starts and drives `engine_child` in a process with the environment that vLLM needs on a CPU."""

import os
import subprocess
import sys
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

HERE = Path(__file__).parent

ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(HERE / "interpreter"), str(HERE.parent)]),
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Tiny tensors: more threads only wait for each other.
    "OMP_NUM_THREADS": "1",
    # Some of vLLM's small functions are compiled even in eager mode.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def child_environment(**changes):
    """The environment of a process that imports vLLM; what changes to None is not in it."""
    path = os.pathsep.join(filter(None, [ENVIRONMENT["PYTHONPATH"], os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, **changes}
    return {name: value for name, value in environment.items() if value is not None}


class EngineProcess:
    """A process that runs engines; its methods are those of `engine_child.Engines`."""

    def __init__(self, folder, **environment):
        self.log = open(folder / "engines.log", "a")  # noqa: SIM115
        address = str(folder / f"engines-{id(self)}")
        with Listener(address) as listener:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "engine_child.py", address, folder],
                # Without it the engines' own kv_cache_memory_bytes counts, which leaves room for many of them.
                env=child_environment(VLLM_CPU_KVCACHE_SPACE=None, **environment),
                stdout=self.log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
            self.connection = listener.accept()

    def __getattr__(self, method):
        def call(*args, **kwargs):
            self.connection.send((method, args, kwargs))
            try:
                kind, answer = self.connection.recv()
            except EOFError:
                pytest.fail(f"the engine process ended; its log: {self.log.name}")
            if kind == "error":
                raise RuntimeError(answer)
            return answer

        return call

    def close(self):
        """Let the process end by itself, so that it ends the processes of its engines."""
        self.connection.close()
        try:
            self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.log.close()
