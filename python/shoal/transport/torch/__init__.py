"""Tensors between two processes by the process groups of `torch.distributed`.

The groups stand beside the user's default group and never touch it: they are made from torch's
process-group classes on a store of shoal's own. `pair` moves tensors of one direction between two
processes over gloo, `accelerator` and `ipc` move tensors between accelerators. Nothing that comes
over these connections is unpickled, because neither the store nor gloo knows who connects.
"""
