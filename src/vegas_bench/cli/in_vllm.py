"""Flags of measurements that run in vLLM, and what they come to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vegas_bench.cli import runs
from vegas_bench.results.wording import count_text
from vegas_spec.cli import flags
from vegas_spec.cli.errors import UsageError
from vegas_spec.cli.load import place_of, read_json_object
from vegas_spec.config import check_choice

if TYPE_CHECKING:
    from vegas_bench.measure.throughput import PromptsOf
    from vegas_bench.workloads import Encoder


@dataclass(frozen=True, kw_only=True)
class InVllm:
    """What can be told a measurement in vLLM alone."""

    shape: str | None = None
    acceptance: str | None = None
    first_token: str | None = None
    profile: bool = False
    together: bool = False
    kv_bytes: int | None = None
    engine_args: str = "{}"

    def check(self, engine: str, model: str | None = None) -> None:
        """Refuse what does not go together, before anything is loaded.

        Raises
        ------
        UsageError
            Naming the flag.
        ConfigError
            For an unknown engine or shape, or if there is no vLLM.

        """
        check_choice("engine", engine, ["embedded", "vllm"])
        if engine == "vllm":
            from vegas_bench.measure.model_shapes import SHAPES
            from vegas_bench.measure.vllm_side import check_vllm

            check_vllm()
            if self.shape is not None:
                check_choice("--shape", self.shape, SHAPES)
        else:
            for field in dataclasses.fields(self):
                if getattr(self, field.name) not in (field.default, None):
                    flag = field.name.replace("_", "-")
                    raise UsageError(f"--{flag} is for vLLM; give --engine vllm, or leave it out")
        if (model is None) == (self.shape is None):
            raise UsageError("what is measured is a MODEL, or with --engine vllm a --shape; give one of them")
        if self.acceptance and self.shape is None:
            raise UsageError("--acceptance imposes what a model decides by itself; give --shape, or leave it out")
        if self.first_token and self.shape is not None:
            raise UsageError(
                "--first-token times how prompts are read, and a shape's cache is filled with noise instead"
            )
        if self.together and self.kv_bytes is None:
            raise UsageError("--together needs --kv-bytes, since vLLM cannot measure what is free while others start")

    @property
    def rates(self) -> list[float]:
        """Acceptance to impose; empty for none."""
        return runs.numbers(self.acceptance, "--acceptance", float) if self.acceptance else []

    @property
    def lengths(self) -> list[int]:
        """Of prompts whose first token is timed."""
        return runs.numbers(self.first_token, "--first-token", int) if self.first_token else []

    @property
    def arguments(self) -> dict[str, Any]:
        """Further ones of `vllm.LLM`."""
        return read_json_object("--engine-args", self.engine_args)

    def engine(
        self, model: str | None, loading: flags.Loading, limits: Mapping[str, Any], sides: int, console: Console
    ) -> dict[str, Any]:
        """Arguments of `vllm.LLM` for all sides, of which there are so many; a model is fetched if need be."""
        arguments: dict[str, Any] = {"dtype": loading.dtype}
        if loading.device != "auto":
            raise UsageError("--device is the embedded engine's; choose vLLM's GPUs by CUDA_VISIBLE_DEVICES")
        if loading.revision:
            arguments["revision"] = loading.revision
        if loading.hf_overrides:
            arguments["hf_overrides"] = read_json_object("--hf-overrides", loading.hf_overrides)
        if self.shape is not None:
            from vegas_bench.measure.model_shapes import shape_arguments

            arguments |= shape_arguments(self.shape)
        else:
            arguments["model"] = place_of(str(model), console)
        if self.kv_bytes is not None:
            arguments["kv_cache_memory_bytes"] = self.kv_bytes
        if self.together:  # vLLM's memory profile would take the other engines' memory for its own
            arguments["gpu_memory_utilization"] = 0.9 / sides
        return {**arguments, **limits, **self.arguments}


IN_VLLM = flags.Group(
    of=InVllm,
    make=InVllm,
    panel="In vLLM",
    metavars={"engine_args": "JSON"},
    help={
        "shape": "Instead of MODEL, random weights: qwen3-8b, qwen3-1.7b or gpt-oss-20b.",
        "acceptance": "With --shape, impose it: chances by commas that draft 1, 1 and 2, ... are accepted.",
        "first_token": "Also time the first token of prompts this long, by commas.",
        "profile": "Also tell time by kernel and by the host's functions.",
        "together": "Start all engines at once; they measure in turns.",
        "kv_bytes": "Size of each engine's KV cache.",
        "engine_args": "Further arguments of vllm.LLM.",
    },
)


def encoder_of(model: str, engine: Mapping[str, Any]) -> Encoder:
    """Load the tokenizer that an engine's prompts are made with."""
    from vegas_bench.workloads import Encoder
    from vegas_spec.engine.loading import load_tokenizer

    return Encoder(load_tokenizer(engine.get("tokenizer") or engine["model"], engine.get("revision")), model)


def prompts_for(encoder: Encoder, workload: str) -> PromptsOf:
    """Make a workload's prompts of exactly the wanted lengths, each batch once."""
    from vegas_bench.workloads import parse

    spec = parse(workload)

    @functools.cache
    def prompts_of(context: int, batch: int) -> Sequence[list[int]]:
        found = spec.build(encoder, context, prompts=batch, min_tokens=context, max_tokens=context)
        if len(found) < batch:
            raise UsageError(
                f"workload {workload} has {count_text(len(found), 'prompt')} of at least {context} tokens, and "
                f"{batch} are needed; take another workload (texts has as many as are wanted) or a smaller batch"
            )
        return [each.prompt["prompt_token_ids"] for each in found]

    return prompts_of
