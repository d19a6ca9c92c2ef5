"""Support code of the benchmarks: contenders that take turns, and their tables."""
