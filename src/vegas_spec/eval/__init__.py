"""Workloads, runs and checks on top of the engines."""
