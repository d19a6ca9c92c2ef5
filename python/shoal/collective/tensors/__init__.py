"""How tensors travel beside the queue of messages: between nodes, and on accelerators.

`sends` and `receives` are the two ends of one worker's messages to another. `frames` moves tensors
between nodes over gloo, `devices` moves them between accelerators, and `layout` tells the receiver
which tensors come.
"""
