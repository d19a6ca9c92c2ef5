"""What carries messages: keyed queues of one process, of one node, and on other nodes.

`protocol` has the interface of all of them and the values that cross it. `local` keeps the items in
this process, and `shared` in a session of `shoal.shm`. `order` keeps the operations of this process
in order, and `wait` makes works of them. `leases` has items that return unless they are acknowledged,
`arrays` the arrays that producers fill in place, `settings` the description of a channel, and `counts`
its figures.
"""
