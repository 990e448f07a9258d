"""Prompts to measure with, by name: one registry, the same parameters for all."""

from vegas_bench.workloads.prompt import Wanted, WorkloadPrompt
from vegas_bench.workloads.registry import WORKLOADS, Workload, WorkloadSpec, parse
from vegas_spec.engine.encoder import Encoder

__all__ = ["WORKLOADS", "Encoder", "Wanted", "Workload", "WorkloadPrompt", "WorkloadSpec", "parse"]
