"""Traces: what each process of a job did when, as one file that Perfetto opens.

`Tracer` is both ends: the calls that programs make, and the manager that writes the file. Events go
from `Tracer` into a file of their process (`spool`). One process of each node sends those of all
(`sending`), with the difference between its clock and the manager's (`clock`). `chrome` turns the manager's
file into one for Perfetto. `recording` switches all that on and off in a process.
"""

from shoal.tracing.chrome import to_chrome
from shoal.tracing.recording import TOKEN_VARIABLE, end, settle, use
from shoal.tracing.tracer import InProcess, Tracer, begin, finish

__all__ = [
    "TOKEN_VARIABLE",
    "InProcess",
    "Tracer",
    "begin",
    "end",
    "finish",
    "settle",
    "to_chrome",
    "use",
]
