"""Flags that several subcommands share: single ones, and groups that are made of the fields of a dataclass.

A subcommand that is decorated with `with_groups` has every flag of a group where a parameter is annotated with it, and
gets one object there::

    @with_groups
    def verify(model: Model, *, drafting: Annotated[Drafting, DRAFTING], loading: Annotated[Loading, LOADING]) -> None:

Names, types and defaults are those of the dataclass, so that a field which is added to it is a flag of every such
subcommand; its line of help stands here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from vegas_spec.cli.errors import UsageError
from vegas_spec.config import VegasConfig, policy_paths
from vegas_spec.engine.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Group:
    """The flags of a dataclass.

    Attributes
    ----------
    of : type
        Whose fields the flags are; all of them have defaults.
    panel : str
        Heading above them in the help.
    help : mapping
        A line for each field. The flags stand in its order.
    make : callable
        From the flags that were given, by field, to the object that the subcommand gets.
    defaults, metavars : mapping
        By field, where the command's default is another one, and what stands for a value in the help, if not its type.
    left_out : sequence of str
        Fields that have no flag here.
    shows_defaults, switches_off : bool
        What to change where a file may hold the options, too: no default is shown, and a bool has its ``--no-...``.

    """

    of: type
    panel: str
    help: Mapping[str, str]
    make: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    shows_defaults: bool = True
    switches_off: bool = False
    metavars: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Fields that have a flag, in the order of the help."""
        fields = {each.name: each for each in dataclasses.fields(self.of)}
        return [name for name in {**self.help, **fields} if name in fields and name not in self.left_out]

    def without(self, *names: str, **defaults: Any) -> Group:
        """Give the group without some of its flags, and with other defaults."""
        return dataclasses.replace(self, left_out=[*self.left_out, *names], defaults={**self.defaults, **defaults})

    def only(self, *names: str, **defaults: Any) -> Group:
        """Give the group with some of its flags alone, and with other defaults."""
        return self.without(*(name for name in self.names if name not in names), **defaults)

    def saying(self, **lines: str) -> Group:
        """Give the group with other lines of help."""
        return dataclasses.replace(self, help={**self.help, **lines})

    def flag(self, name: str) -> Any:
        """One of the flags, for a parameter of its own: ``Annotated[int, SAMPLING.flag("max_tokens")]``."""
        written = name.replace("_", "-")
        off = f"/--no-{written}" if self.switches_off and _type_of_value(self.of, name) is bool else ""
        return typer.Option(
            f"--{written}{off}",
            help=self.help.get(name),
            rich_help_panel=self.panel,
            metavar=self.metavars.get(name),
        )

    def parameters(self) -> list[inspect.Parameter]:
        """The flags as parameters of a function, the way typer reads them."""
        defaults = {each.name: each.default for each in dataclasses.fields(self.of)} | dict(self.defaults)
        nothing = (dataclasses.MISSING, ())
        return [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name] if self.shows_defaults and defaults[name] not in nothing else None,
                annotation=Annotated[_type_of_value(self.of, name) | None, self.flag(name)],
            )
            for name in self.names
        ]


def _type_of_value(of: type, name: str) -> Any:
    """What a command line holds for a field: a word where there are names to choose from, a list for a sequence."""
    kind = get_type_hints(of)[name]
    if get_origin(kind) in (Union, UnionType):
        kind = [each for each in get_args(kind) if each is not NoneType][-1]
    if get_origin(kind) is Literal:
        return str
    return list[get_args(kind)[0]] if get_origin(kind) is Sequence else kind  # type: ignore[misc]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Put flags in the place of the parameters that are annotated with a `Group`."""
    own = inspect.signature(command, eval_str=True).parameters
    groups = {
        name: annotated
        for name, parameter in own.items()
        for annotated in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(annotated, Group)
    }

    @functools.wraps(command)
    def with_flags(context: typer.Context, **values: Any) -> None:
        for name, group in groups.items():
            flags = {flag: values.pop(flag) for flag in group.names}
            given = {flag: value for flag, value in flags.items() if _is_given(context, flag)}
            values[name] = group.make(**{**group.defaults, **given})
        command(**values)

    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in own.items():
        alone = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        parameters += groups[name].parameters() if name in groups else alone
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_flags


def _is_given(context: typer.Context, flag: str) -> bool:
    return getattr(context.get_parameter_source(flag), "name", "") == "COMMANDLINE"


class Drafting:
    """Options of `VegasConfig` that were given on the command line, by name; those of a file may join them."""

    def __init__(self, **given: Any) -> None:
        name, _, options = str(given.get("policy", "")).partition(":")
        if "=" in options:  # as measurements that compare policies take it
            pairs = [option.partition("=") for option in options.split(":")]
            written = " ".join(f"--{key.replace('_', '-')} {value}" for key, _, value in pairs)
            raise UsageError(f"--policy takes a name here; give its options as flags: --policy {name} {written}")
        self.given = given

    @property
    def config(self) -> VegasConfig:
        """What was given, and the defaults of all else."""
        return VegasConfig(**self.given)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a model is loaded: options of `vegas_spec.LLM`, of the same names and defaults, but overrides as JSON."""

    dtype: str = "auto"
    device: str = "auto"
    revision: str | None = None
    hf_overrides: str | None = None
    max_model_len: int | None = None
    threads: int | None = None


DRAFTING = Group(
    of=VegasConfig,
    make=Drafting,
    panel="Drafting",
    switches_off=True,
    help={
        "num_speculative_tokens": "Drafted tokens per iteration, 1 to 16.",
        "policy": "vegas, dense (drafts read everything), full (no drafts); baselines: "
        f"{', '.join(name for name in policy_paths() if name not in ('vegas', 'dense', 'full'))}.",
        "kv_budget": "Share of the context that a draft step reads.",
        "kv_budget_min": "Fewest entries it reads.",
        "kv_budget_max": "Most entries it reads.",
        "score": "Rank entries by softmax weight or by logit.",
        "rows": "Verified rows that score: ends, all or last.",
        "granularity": "One set per kv_head, or per layer.",
        "lookahead": "Decay by which scores flow to the keys that follow; 0 is off.",
        "adaptive": "Adapt drafts and budget to what is accepted; those given are then the most.",
    },
)

SAMPLING = Group(
    of=SamplingParams,
    make=SamplingParams,
    panel="Sampling",
    defaults={"max_tokens": 256, "temperature": 0.0},  # vLLM's own are a sentence, drawn at random
    left_out=["logit_bias"],  # a number for each token: nothing for a command line
    help={
        "max_tokens": "Most tokens to generate.",
        "min_tokens": "Fewest, before anything else may end the output.",
        "temperature": "0 is greedy.",
        "top_k": "Keep the k likeliest tokens; 0 is all.",
        "top_p": "Keep the likeliest tokens up to this mass.",
        "min_p": "Drop tokens below this share of the likeliest.",
        "repetition_penalty": "Above 1 discourages repeating.",
        "presence_penalty": "Subtracted from tokens already said.",
        "frequency_penalty": "The same, once per occurrence.",
        "seed": "Makes sampling reproducible.",
        "stop": "End at this text; may be repeated.",
        "stop_token_ids": "End at this token; may be repeated.",
        "ignore_eos": "Go on after the end-of-sequence token.",
        "bad_words": "Never say this word; may be repeated.",
        "allowed_token_ids": "Say this token and no other; may be repeated.",
    },
)

LOADING = Group(
    of=Loading,
    make=Loading,
    panel="Loading",
    metavars={"hf_overrides": "JSON"},
    help={
        "dtype": "auto, float32, bfloat16 or float16.",
        "device": "auto, cpu, cuda or cuda:N.",
        "revision": "Of a hub model.",
        "hf_overrides": "Values for keys of the model's configuration, such as rope_parameters.",
        "max_model_len": "Most tokens of prompt and output together.",
        "threads": "Of the CPU; one core fewer than there are where another process is busy.",
    },
)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name of `vegas models`, a hub id, a folder, or a .gguf file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
MaxTokens = Annotated[int, SAMPLING.flag("max_tokens")]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A file of `vegas tune` with options of drafting; flags win over it.",
        rich_help_panel=DRAFTING.panel,
    ),
]
