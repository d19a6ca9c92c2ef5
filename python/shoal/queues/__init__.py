"""Keyed queues, which carry messages: within one process, within one node, and between nodes.

`wait` has `Queues`, the interface of all of them, and lets calls wait, with deadlines and log lines;
`protocol` has the values that cross the interface. An engine is a class of `Queues` that has what
differs: `local` keeps the items in this process, `shared` in a session of `shoal.shm`, and `lane`
reaches such a session on another node. `order` attempts operations that have to wait, each in its
turn. `arrays` has the arrays that producers fill in place, `settings` the description of a channel,
and `usage` its figures.
"""
