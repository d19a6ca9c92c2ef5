"""Keyed queues, which carry messages: within one process, and within one node.

`protocol` has the interface of all of them and the values that cross it. An engine has what differs:
`local` keeps the items in this process, `shared` in a session of `shoal.shm`. What they have in
common is written once: `order` attempts operations that have to wait, each in its turn, and `wait`
lets calls wait for them, with deadlines and log lines. `leases` has items that return unless they
are acknowledged, `arrays` the arrays that producers fill in place, `settings` the description of a
channel, and `usage` its figures.
"""
