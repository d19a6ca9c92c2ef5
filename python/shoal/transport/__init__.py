"""How bytes move between two processes.

`choice` decides which transport carries what between two workers, and says why; packages can
register transports of their own. `torch` moves tensors over groups of `torch.distributed`. The
other modules make the calls of channels to their actors: `client` (operations, run in a thread or
in an event loop), `wire` (packing), `sequence` and `turns` (the order of asynchronous operations)
and `queues` (keyed queues in one process).
"""
