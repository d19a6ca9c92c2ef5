"""Moves tensors between processes through the process groups of `torch.distributed`.

The groups are independent of the user's default group: shoal makes them from torch's
process-group classes, with a store of its own. `pair` sends tensors from one process to another
over gloo, `group` broadcasts them among several ranks over gloo, and `accelerator` and `ipc` move
tensors between accelerators. Data from these connections is never unpickled, because neither the
store nor gloo authenticates the peer.
"""
