"""The replacements that `hooks` names: few, idempotent, and vLLM's own code runs unless Vegas is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from vegas_spec.vllm.start import banner, hooks, options, refusals

BACKEND = "vegas_spec.vllm.worker.flash_attention.VegasFlashAttentionBackend"
CPU_BACKEND = "vegas_spec.vllm.worker.cpu_attention.VegasCPUAttentionBackend"


def create_engine_config(original: Callable[..., Any]) -> Callable[..., Any]:
    """Translate the user's request, and refuse what is not supported before anything is loaded."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with options.told_to_vllm(self) as config:
            if config is not None:
                missing = hooks.faults((*hooks.RUNNER, *hooks.platform_hooks()))
                if missing:
                    raise ValueError(hooks.mismatch_message(missing))
                claim_backend()
            vllm_config = original(self, *args, **kwargs)
        if options.is_vegas(vllm_config):
            refusals.check(vllm_config)
            banner.warn_if_untested()
        return vllm_config

    return wrapped


def claim_backend() -> None:
    """Make CUSTOM stand for our attention; refuse if another plugin has taken it."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        raise ValueError(
            f"vegas requires vLLM's attention backend CUSTOM for itself; got {custom.get_path()}, registered by "
            "another plugin. Choose plugins with VLLM_PLUGINS instead."
        )
    register_backend(custom, BACKEND)


def add_cli_args(original: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``vegas`` to the choices of ``--spec-method``."""

    def wrapped(parser: Any, *args: Any, **kwargs: Any) -> Any:
        parser = original(parser, *args, **kwargs)
        for action in parser._actions:
            if action.dest == "spec_method" and action.choices and options.METHOD not in action.choices:
                action.choices = [*action.choices, options.METHOD]
        return parser

    return wrapped


def post_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Settle the lengths of draft before vLLM derives what follows from them."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        if options.is_vegas(self):
            options.arrange_lengths(self)
        original(self, *args, **kwargs)

    return wrapped


def unsupported_features(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let our speculator into the V2 runner, for which it is written; others stay out."""

    def wrapped(self: Any) -> list[str]:
        features: list[str] = original(self)
        if options.is_vegas(self):
            features = [feature for feature in features if feature != "speculative method 'custom_class'"]
        return features

    return wrapped


def num_lookahead_tokens(original: Callable[..., Any]) -> Callable[..., Any]:
    """Drafts write K/V past the verified tokens, so the scheduler must reserve their slots."""

    def wrapped(self: Any) -> int:
        return int(self.num_speculative_tokens if options.is_vegas(self) else original(self))

    return wrapped


def init_speculator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Build ours where it is asked for."""

    def wrapped(vllm_config: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        if not options.is_vegas(vllm_config):
            return original(vllm_config, device, *args, **kwargs)
        from vegas_spec.vllm.worker import figures
        from vegas_spec.vllm.worker.speculator import VegasSpeculator

        claim_backend()
        figures.add_to_worker()
        # In modules that are too heavy to import before an engine with Vegas has been asked for.
        hooks.install(hooks.RUNNER)
        return VegasSpeculator(vllm_config, device)

    return wrapped


def load_model(original: Callable[..., Any]) -> Callable[..., Any]:
    """Show our speculator the sampler's parameters, once the runner has made it."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if options.is_vegas(self.vllm_config):
            from vegas_spec.vllm.worker.truncation import Truncation

            self.speculator.truncation = Truncation(self.sampler.sampling_states, self.device)
        return result

    return wrapped


def cpu_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    """On a CPU vLLM ignores the chosen backend; CUSTOM is set by nobody but us there."""

    def wrapped(cls: Any, selected_backend: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(selected_backend, "name", None) == "CUSTOM" and selected_backend.is_overridden():
            return CPU_BACKEND if selected_backend.get_path() == BACKEND else original(cls, None, *args, **kwargs)
        return original(cls, selected_backend, *args, **kwargs)

    return wrapped


def apply() -> None:
    """Install every replacement that is needed before an engine has been asked for."""
    hooks.install((*hooks.CONFIGURATION, *hooks.platform_hooks()))
    # The runner imports the function by name; where it was imported before us, that name is replaced too.
    runner = sys.modules.get("vllm.v1.worker.gpu.model_runner")
    if runner is not None:
        hooks.replace(runner, "init_speculator", init_speculator)


def refuse_vegas(message: str) -> None:
    """Only make a request for Vegas fail with `message`, in a vLLM that Vegas does not fit."""
    from vllm.engine.arg_utils import EngineArgs

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            if options.requested_options(self) is not None:
                raise ValueError(message)
            return original(self, *args, **kwargs)

        return wrapped

    if "create_engine_config" in vars(EngineArgs):
        hooks.replace(EngineArgs, "create_engine_config", wrap)
