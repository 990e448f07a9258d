"""``vllm serve`` with Vegas on: the command line that vLLM gets, and its own entry point called with it.

Nothing here imports vLLM before all that was asked of us has been checked.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from vegas_spec import environment
from vegas_spec.config import ConfigError
from vegas_spec.vllm.start import options

MAX_NUM_SEQS = 256
"""Default of ``--max-num-seqs``. vLLM's own on a large GPU is 1024, for which Vegas would keep the distributions of as
many drafts (1024 x 6 x 152K tokens in float32: 3.7 GB) and cut the budget of long contexts: 2 % of an H200 hold 5 % of
130K tokens for 256 requests of an 8B model (36 layers, 8 KV heads), and no more."""

_OF_VLLM = (".yaml", ".yml")
"""Names of files that ``--config`` hands on to vLLM, which reads its own flags from them."""

_SPECULATIVE = ("--speculative-config", "--speculative_config", "-sc")


def take_config_file(passed: Sequence[str]) -> tuple[list[str], str | None]:
    """Split arguments into those of vLLM, and our config file if one is given by ``--config``."""
    rest, taken = _take(passed, lambda flag: flag == "--config")
    of_vllm = [value for _, value in taken if value.endswith(_OF_VLLM)]
    ours = [value for _, value in taken if not value.endswith(_OF_VLLM)]
    if len(ours) > 1 or "" in ours:
        raise ConfigError(
            "--config takes one config file of vegas (TOML or JSON, as vegas tune writes it), and one of vLLM's "
            f"(YAML); got {'no file' if '' in ours else ' and '.join(ours)}"
        )
    return [*rest, *(word for value in of_vllm for word in ("--config", value))], ours[0] if ours else None


def _take(passed: Sequence[str], wanted: Callable[[str], bool]) -> tuple[list[str], list[tuple[str, str]]]:
    """Split arguments into those of others, and the flags that are wanted with the value of each; "" if it has none."""
    rest: list[str] = []
    taken: list[tuple[str, str]] = []
    remaining = iter(passed)
    for argument in remaining:
        flag, has_value, value = argument.partition("=")
        if wanted(flag):
            taken.append((flag, value if has_value else next(remaining, "")))
        else:
            rest.append(argument)
    return rest, taken


def serve_arguments(
    passed: Sequence[str], drafting: Mapping[str, Any], tuned: Mapping[str, Any] | None = None
) -> list[str]:
    """Arguments of ``vllm serve``: those `passed`, with Vegas on.

    Parameters
    ----------
    passed : sequence of str
        What the user wrote for vLLM. ``--speculative-config`` in it, whole or key by key, is taken out and merged.
    drafting : mapping
        Keys of the speculative configuration that were given otherwise; they win.
    tuned : mapping, optional
        Options from a config file; they give way to all others.

    Returns
    -------
    list of str
        Without the leading ``serve``.

    Raises
    ------
    ConfigError
        If an option of the speculative configuration is unknown, its value is not allowed, or its method is another.

    """
    rest, written = take_speculative_config(passed)
    merged = {"method": options.METHOD, **(tuned or {}), **written, **drafting}
    if merged["method"] != options.METHOD:
        raise ConfigError(
            f"vegas serve serves with method 'vegas'; got method {merged['method']!r}. "
            "Leave the method out, or use vllm serve for another one."
        )
    options.split_options(merged)
    names = {argument.partition("=")[0].replace("_", "-") for argument in rest}
    # A file of vLLM's own may set it, and what stands on the command line would win over the file.
    if not names & {"--max-num-seqs", "--config"}:
        rest += ["--max-num-seqs", str(MAX_NUM_SEQS)]
    return [*rest, "--speculative-config", json.dumps(merged)]


def take_speculative_config(passed: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split arguments into those of others, and the speculative configuration, in any of vLLM's spellings of it."""
    rest, taken = _take(passed, lambda flag: flag.partition(".")[0] in _SPECULATIVE)
    config: dict[str, Any] = {}
    for flag, value in taken:
        key = flag.partition(".")[2].replace("-", "_")
        config |= {key: _plain_value(value)} if key else _json_object(flag, value)
    return rest, config


def _plain_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _json_object(flag: str, text: str) -> dict[str, Any]:
    found = _plain_value(text)
    if not isinstance(found, dict):
        raise ConfigError(
            f"{flag} must be a JSON object such as '{{\"kv_budget\": 0.05}}'; got {text!r}. "
            "Quote it for the shell, or give its keys one by one, as in --kv-budget 0.05."
        )
    return {key.replace("-", "_"): value for key, value in found.items()}


def is_installed() -> bool:
    """Whether there is a vLLM."""
    return importlib.util.find_spec("vllm") is not None


def check_vllm() -> None:
    """Raise a `ConfigError` if no vLLM is installed here, or if it is kept from loading the plugin."""
    if not is_installed():
        raise ConfigError(f"vegas serve needs vLLM, which is not installed; run: {environment.pip_install('vllm')}")
    if os.environ.get("VEGAS_DISABLE") == "1":
        raise ConfigError("vegas serve needs the plugin that VEGAS_DISABLE=1 turns off; unset VEGAS_DISABLE")
    chosen = os.environ.get("VLLM_PLUGINS")
    if chosen is not None and options.METHOD not in chosen.split(","):
        raise ConfigError(
            f"vegas serve needs the plugin 'vegas' among VLLM_PLUGINS; got {chosen!r}. Add vegas to it, or unset it."
        )


def check_arguments(arguments: Sequence[str], ours: Sequence[str]) -> str | None:
    """Refuse arguments that neither Vegas nor vLLM has.

    Parameters
    ----------
    arguments : sequence of str
        Of ``vllm serve``.
    ours : sequence of str
        Flags that ours has beside them: one that is written almost like these is a mistyped one.

    Returns
    -------
    str or None
        A sentence about what could not be checked, where no vLLM is installed.

    Raises
    ------
    ConfigError
        If there is no such flag, or vLLM does not take its value.

    """
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        for near in difflib.get_close_matches(flag, ours, n=1, cutoff=0.8) if flag.startswith("--") else ():
            raise ConfigError(f"there is no option {argument.partition('=')[0]}; did you mean {near}?")
    if not is_installed():
        return "the options of vllm serve were not checked, since vLLM is not installed here"
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise ConfigError(f"vllm serve refuses these arguments: {message}")

    parser = Parser()
    subparsers = parser.add_subparsers(dest="subparser")
    for command in cmd_init():
        command.subparser_init(subparsers)
    try:
        parser.parse_args(["serve", *arguments])
    except OSError as error:  # of a file that --config names
        raise ConfigError(f"vllm serve refuses these arguments: {error}") from error
    return None


def run_vllm(arguments: Sequence[str]) -> None:
    """Call the entry point of the command ``vllm`` with ``serve`` and these arguments; returns when the server ends."""
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", "serve", *arguments]
    main()


def hardware() -> str:
    """What vLLM runs on, by the name that results have, without starting CUDA in this process."""
    from vllm.platforms import current_platform

    platform: Any = current_platform
    return str(platform.get_device_name()) if platform.is_cuda() else environment.hardware()
