"""Prompts to measure with, by name: one registry, the same parameters for all."""

from vegas_spec.eval.workloads.encoder import Encoder
from vegas_spec.eval.workloads.prompt import Wanted, WorkloadPrompt
from vegas_spec.eval.workloads.registry import WORKLOADS, Workload, WorkloadSpec, parse
from vegas_spec.eval.workloads.source import source_prompt

__all__ = ["WORKLOADS", "Encoder", "Wanted", "Workload", "WorkloadPrompt", "WorkloadSpec", "parse", "source_prompt"]
