"""Flags that several subcommands share; each carries the name of the API's own option.

`vegas serve`, whose flags have no defaults of their own, takes those in capitals with a type of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from vegas_spec.cli.errors import UsageError
from vegas_spec.cli.progress import fetch_showing_progress
from vegas_spec.models import known_models

if TYPE_CHECKING:
    from vegas_spec.engine.llm import LLM

_MODEL = "Loading"
_METHOD = "Drafting"
_SAMPLING = "Sampling"

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name of `vegas models`, a hub id, a folder, or a .gguf file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.", rich_help_panel=_MODEL)]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", rich_help_panel=_MODEL)]
Revision = Annotated[str | None, typer.Option("--revision", help="Of a hub model.", rich_help_panel=_MODEL)]
HfOverrides = Annotated[
    str | None,
    typer.Option(
        "--hf-overrides",
        metavar="JSON",
        help="Values for keys of the model's configuration, such as rope_parameters.",
        rich_help_panel=_MODEL,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", help="Most tokens of prompt and output together.", rich_help_panel=_MODEL),
]

NUM_SPECULATIVE_TOKENS: Any = typer.Option(
    "--num-speculative-tokens", help="Drafted tokens per iteration, 1 to 16.", rich_help_panel=_METHOD
)
NumSpeculativeTokens = Annotated[int, NUM_SPECULATIVE_TOKENS]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        help="vegas, dense (drafts read everything), full (no drafts); baselines: stream, quest, specextend, oracle.",
        rich_help_panel=_METHOD,
    ),
]
KV_BUDGET: Any = typer.Option(
    "--kv-budget", help="Share of the context that a draft step reads.", rich_help_panel=_METHOD
)
KvBudget = Annotated[float, KV_BUDGET]
KV_BUDGET_MIN: Any = typer.Option("--kv-budget-min", help="Fewest entries it reads.", rich_help_panel=_METHOD)
KvBudgetMin = Annotated[int, KV_BUDGET_MIN]
KV_BUDGET_MAX: Any = typer.Option("--kv-budget-max", help="Most entries it reads.", rich_help_panel=_METHOD)
KvBudgetMax = Annotated[int | None, KV_BUDGET_MAX]
SCORE: Any = typer.Option("--score", help="Rank entries by softmax weight or by logit.", rich_help_panel=_METHOD)
Score = Annotated[str, SCORE]
Rows = Annotated[
    str, typer.Option("--rows", help="Verified rows that score: ends, all or last.", rich_help_panel=_METHOD)
]
GRANULARITY: Any = typer.Option("--granularity", help="One set per kv_head, or per layer.", rich_help_panel=_METHOD)
Granularity = Annotated[str, GRANULARITY]

Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive/--no-adaptive",
        help="Adapt drafts and budget to what is accepted; those given are then the most.",
        rich_help_panel=_METHOD,
    ),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A file of `vegas tune` with options of drafting; flags win over it.",
        rich_help_panel=_METHOD,
    ),
]

MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Most tokens to generate.", rich_help_panel=_SAMPLING)]
Temperature = Annotated[float, typer.Option("--temperature", help="0 is greedy.", rich_help_panel=_SAMPLING)]
TopK = Annotated[int, typer.Option("--top-k", help="Keep the k likeliest tokens; 0 is all.", rich_help_panel=_SAMPLING)]
TopP = Annotated[
    float, typer.Option("--top-p", help="Keep the likeliest tokens up to this mass.", rich_help_panel=_SAMPLING)
]
MinP = Annotated[
    float, typer.Option("--min-p", help="Drop tokens below this share of the likeliest.", rich_help_panel=_SAMPLING)
]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1 discourages repeating.", rich_help_panel=_SAMPLING)
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="Subtracted from tokens already said.", rich_help_panel=_SAMPLING)
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="The same, once per occurrence.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes sampling reproducible.", rich_help_panel=_SAMPLING)]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="End at this text; may be repeated.", rich_help_panel=_SAMPLING)
]
StopTokenIds = Annotated[
    list[int] | None,
    typer.Option("--stop-token-ids", help="End at this token; may be repeated.", rich_help_panel=_SAMPLING),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the end-of-sequence token.", rich_help_panel=_SAMPLING)
]


def load(model: str, console: Console, **options: Any) -> LLM:
    """Load a model for a subcommand, fetching it first if it is one of `vegas models`.

    Parameters
    ----------
    model : str
        As on the command line.
    console : Console
        Where waiting is shown.
    **options
        Of `vegas_spec.LLM`; ``hf_overrides`` as the JSON that was given.

    """
    from vegas_spec.config import VegasConfig

    if options.get("hf_overrides") is not None:
        options["hf_overrides"] = read_json_object("--hf-overrides", options["hf_overrides"])

    config_options = VegasConfig.__dataclass_fields__
    VegasConfig.from_dict({name: value for name, value in options.items() if name in config_options})
    model = place_of(model, console)
    with console.status(f"loading {escape(model)}") if console.is_terminal else console.capture():
        import transformers

        from vegas_spec.engine.llm import LLM

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        return LLM(model, **options)


def read_json_object(flag: str, text: str) -> dict[str, Any]:
    """Parse a flag's JSON object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag} must be a JSON object; got {text!r} ({error})") from error
    if not isinstance(values, dict):
        raise UsageError(f"{flag} must be a JSON object; got {text!r}")
    return values


def place_of(model: str, console: Console) -> str:
    """Where a model is: of one of `vegas models`, its folder, fetched if need be; of others, what was given."""
    known = any(model == each.name for each in known_models())
    return str(fetch_showing_progress(model, console)) if known else model


def drafting(context: typer.Context, config: Path | None, model: str, console: Console) -> dict[str, Any]:
    """Gather the options of `VegasConfig`: flags that were given, else the config file's, else the flags' defaults.

    A file that was tuned on another model or hardware is used with a warning.
    """
    from vegas_spec.config import VegasConfig

    options = {name: context.params[name] for name in VegasConfig.__dataclass_fields__ if name in context.params}
    if config is None:
        return options
    from vegas_spec import config_file
    from vegas_spec.environment import hardware

    content = config_file.load(config)
    for warning in content.warnings(model=model, hardware=hardware()):
        console.print(f"vegas: warning: {config}: {warning}", style="yellow", highlight=False, markup=False)
    given = {name for name in options if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    return {**options, **{name: value for name, value in content.options.items() if name not in given}}
