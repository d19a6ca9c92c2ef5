"""Chooses the way on which two workers exchange messages, and moves tensors.

`choice` chooses the transport between two workers and gives the reason; packages can register
transports of their own. `torch` moves tensors over groups of `torch.distributed`.
"""
