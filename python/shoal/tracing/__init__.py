"""Traces: what each process of a job did when, as one file that Perfetto opens.

`Tracer` is both ends: the calls that programs make, and the manager that writes the file. Events go
from `Tracer` into a file of their process (`spool`), from there in batches to the manager
(`sending`), with the clock of node 0 (`clock`); `chrome` turns the manager's file into one for
Perfetto. `recording` switches all that on and off in a process.
"""

from shoal.tracing.chrome import to_chrome
from shoal.tracing.recording import TOKEN_VARIABLE, begin, end, flush, settle, use
from shoal.tracing.tracer import InProcess, Tracer, finish, finish_here

__all__ = [
    "TOKEN_VARIABLE",
    "InProcess",
    "Tracer",
    "begin",
    "end",
    "finish",
    "finish_here",
    "flush",
    "settle",
    "to_chrome",
    "use",
]
