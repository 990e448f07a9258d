"""Vegas: lossless long-context decoding. A model drafts for itself over the KV entries that its verification chose."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vegas_spec.config import ConfigError, VegasConfig
    from vegas_spec.engine.llm import LLM
    from vegas_spec.engine.outputs import CompletionOutput, RequestOutput, RequestStats
    from vegas_spec.engine.prompts import InputError
    from vegas_spec.engine.request import PrefilledPrompt
    from vegas_spec.engine.sampling_params import SamplingParams
    from vegas_spec.engine.support import ModelError

__version__ = "0.1.0"

_WHERE = {
    "ConfigError": "config",
    "VegasConfig": "config",
    "LLM": "engine.llm",
    "InputError": "engine.prompts",
    "CompletionOutput": "engine.outputs",
    "RequestOutput": "engine.outputs",
    "RequestStats": "engine.outputs",
    "PrefilledPrompt": "engine.request",
    "SamplingParams": "engine.sampling_params",
    "ModelError": "engine.support",
}

__all__ = [  # noqa: RUF022 - what people look for first comes first
    "LLM",
    "SamplingParams",
    "VegasConfig",
    "RequestOutput",
    "CompletionOutput",
    "RequestStats",
    "PrefilledPrompt",
    "ConfigError",
    "InputError",
    "ModelError",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command and vLLM's plugin loader must start without torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
