"""Queues between processes of one host, in shared memory, that survive the processes.

::

    from shoal import shm

    session = shm.Session.create()  # session.token: for other processes
    queue = session.queue("rollouts", maxsize=64)
    queue.put({"obs": array, "reward": 1.0})  # in any process
    batch = queue.get()  # in any other

Any number of processes put and get. Each message goes to exactly one consumer, in the order of the
puts of its key. Large arrays and tensors are received as writable views of shared memory that
are the receiver's alone; nothing is copied out, and their memory is free again when they are gone.

What is promised:

- A process may die at any instruction, by SIGKILL too. It blocks nobody, no committed message of
  it is lost or damaged, and its memory is found again: by those who wait, by `Session.sweep`, and
  by the next session or `gc` once all of them are dead.
- A message that a consumer had taken when it died is lost with it, and counted in
  `stats()["lost_messages"]`, unless it was leased: `get(lease=True)` returns a message with
  `ack()`, and what dies before is delivered again, at the end of the queue, as `redelivered`.
- What goes in comes out, type for type; objects without a way of their own by pickle. An
  object that stands in a message twice is one object in what arrives.
- `maxsize`, `max_bytes` and the session's memory are bounds that hold. A put waits for room.
- Ctrl-C ends a call that waits, and loses nothing; nor does the cancellation of `aput` and `aget`.

What is not:

- A queue without `maxsize` holds as many messages as the session's `backlog`; then puts wait.
- Who waits longest is not served first.
- Messages are pickles: a session is for processes that trust each other, of one user, on one host.
- A leased array that its consumer wrote to before it died may be delivered as written.
- Nothing survives the host.

Where many processes read every message, or hard real time counts, iceoryx2 is the better tool:
it publishes to all, and never waits for a kernel.
"""

from shoal._backend import (
    ShmMessage as Message,
    ShmParcel as Parcel,
    ShmReservation as Reservation,
)
from shoal.shm.queue import Queue
from shoal.shm.session import Session, gc, joined

__all__ = ["Message", "Parcel", "Queue", "Reservation", "Session", "gc", "joined"]
