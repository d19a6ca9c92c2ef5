"""Support for the benchmarks beside pytest-benchmark: contenders that take turns, and their tables."""
