"""The flags one by one, for subcommands that do not take them by `flags.with_groups` yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vegas_spec.cli import load as loader
from vegas_spec.cli.flags import DRAFTING, LOADING, SAMPLING, ConfigPath, Drafting, Json, Loading, MaxTokens
from vegas_spec.cli.flags import Model as ModelArgument
from vegas_spec.cli.load import place_of, read_json_object

if TYPE_CHECKING:
    from vegas_spec.engine.llm import LLM

__all__ = ["ConfigPath", "Json", "MaxTokens", "ModelArgument", "place_of", "read_json_object"]

Dtype = Annotated[str, LOADING.flag("dtype")]
Device = Annotated[str, LOADING.flag("device")]
Revision = Annotated[str | None, LOADING.flag("revision")]
HfOverrides = Annotated[str | None, LOADING.flag("hf_overrides")]
MaxModelLen = Annotated[int | None, LOADING.flag("max_model_len")]
NumSpeculativeTokens = Annotated[int, DRAFTING.flag("num_speculative_tokens")]
Policy = Annotated[str, DRAFTING.flag("policy")]
KvBudget = Annotated[float, DRAFTING.flag("kv_budget")]
KvBudgetMin = Annotated[int, DRAFTING.flag("kv_budget_min")]
KvBudgetMax = Annotated[int | None, DRAFTING.flag("kv_budget_max")]
Score = Annotated[str, DRAFTING.flag("score")]
Rows = Annotated[str, DRAFTING.flag("rows")]
Granularity = Annotated[str, DRAFTING.flag("granularity")]
Adaptive = Annotated[bool, DRAFTING.flag("adaptive")]
Temperature = Annotated[float, SAMPLING.flag("temperature")]
Seed = Annotated[int | None, SAMPLING.flag("seed")]
IgnoreEos = Annotated[bool, SAMPLING.flag("ignore_eos")]


def load(model: str, console: Console, **options: Any) -> LLM:
    """Load a model with options of `vegas_spec.LLM`; see `vegas_spec.cli.load.load`."""
    loading = Loading(**{name: options.pop(name) for name in vars(Loading()) if name in options})
    method = {name: options.pop(name) for name in DRAFTING.names if name in options}
    return loader.load(model, console, loading, Drafting(**method), **options)


def drafting(context: typer.Context, config: Path | None, model: str, console: Console) -> dict[str, Any]:
    """Gather the options of `VegasConfig`: flags that were given, else the config file's."""
    given = {
        name: context.params[name]
        for name in DRAFTING.names
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    return {**(loader.tuned(config, model, console) if config else {}), **given}
