"""Benchmarks: declarations, and where their tasks are found. Evaluation runs them, distillation keeps them out."""

from coa.benchmarks.data import load
from coa.benchmarks.registry import Benchmark, benchmarks, find_benchmark, register

__all__ = ["Benchmark", "benchmarks", "find_benchmark", "load", "register"]
