"""Helpers that several test modules and benchmarks share: doubles, crews of processes, checks."""
