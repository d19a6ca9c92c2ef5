"""Queues in shared memory between processes of one node; the queues survive the processes.

::

    from shoal import shm

    session = shm.Session.create()  # other processes attach with session.token
    queue = session.queue("rollouts", maxsize=64)
    queue.put({"obs": array, "reward": 1.0})  # in any process
    batch = queue.get()  # in any other process

Any number of processes put and get. Each message goes to exactly one consumer, in the order of the
puts of its key. Large arrays and tensors arrive as writable views of shared memory that only the
receiver has; they are not copied, and their memory is released when the views are gone.

Guarantees:

- A process may die at any instruction, even by SIGKILL. It blocks no other process, and none of
  its committed messages is lost or damaged. Its memory is reclaimed by processes that wait, by
  `Session.sweep`, or, once all processes of the session are dead, by the next session or `gc`.
- A message that a consumer had taken when it died is lost, and counted in
  `stats()["lost_messages"]`, unless it was leased: `get(lease=True)` returns a message with
  `ack()`. If its consumer dies before that call, the message is put at the end of the queue again
  and its next delivery is marked `redelivered`.
- Objects arrive with the types they were put with; types without a format of their own use pickle.
  An object that occurs twice in a message is one object in the received message.
- `maxsize`, `max_bytes` and the session's memory are hard bounds. A put waits for room. In a
  session with `overfill` the last message in a queue may exceed its `max_bytes`.
- Ctrl-C ends a waiting call and loses nothing; nor does the cancellation of `aput` and `aget`.

Limits:

- A queue without `maxsize` holds at most `backlog` messages (set for the session); then puts wait.
- Callers are not served in the order in which they began to wait.
- Messages are pickles: a session is for processes of one user on one node that trust each other.
- If a consumer wrote to a leased array before it died, the array may be delivered as written.
- Nothing survives a restart of the node.

iceoryx2 is the better tool if many processes read every message, or for hard real time: it
publishes to all, and never waits for a kernel.
"""

from shoal._backend import (
    ShmMessage as Message,
    ShmParcel as Parcel,
    ShmReservation as Reservation,
)
from shoal.shm.queue import Queue
from shoal.shm.session import Session, gc, joined

__all__ = ["Message", "Parcel", "Queue", "Reservation", "Session", "gc", "joined"]
