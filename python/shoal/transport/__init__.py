"""Moves bytes between two processes.

`choice` chooses the transport between two workers and gives the reason; packages can register
transports of their own. `torch` moves tensors over groups of `torch.distributed`. The other
modules serve channels: `client` makes the calls to a channel's actor (from a thread or an event
loop), `wire` packs requests and replies, `sequence` and `turns` keep asynchronous puts and gets in
order, and `queues` holds the keyed queues of a channel within one process.
"""
