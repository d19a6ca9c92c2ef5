"""Payloads in files of their own, which one process writes once and many processes read.

`payloads` has the steps of writers and readers, and the reasons why they are safe; `pool` the files
of a writer, `names` the names of files and links, and `mapping` the system calls that map files.
"""

from shoal.shm.shared_files.payloads import (
    PayloadRef,
    PayloadWriter,
    open_payload,
    sweep,
    withdraw,
)

__all__ = ["PayloadRef", "PayloadWriter", "open_payload", "sweep", "withdraw"]
