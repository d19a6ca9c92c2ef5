"""Functions that workers run in tests of collective groups."""

from shoal import WorkerAddress

PAIR = ("g:0", "g:1")
TRIO = ("g:0", "g:1", "h:0:2")


def addresses(*names):
    return [WorkerAddress.from_name(name) for name in names]


def of(me, names, group_name=None):
    return me.create_collective_group(addresses(*names), group_name, timeout=30)


def make(me, names, group_name=None):
    group = of(me, names, group_name)
    return group.group_name, group.group_info


def call(me, names, method, *args):
    return getattr(of(me, names), method)(*args)


def broadcast(me, names, value, source, options):
    group = of(me, names)
    given = value if group.worker_addresses.index(me._routes.info.address) == source else None
    result = group.broadcast(given, addresses(names[source])[0], timeout=30, **options)
    return result.wait(timeout=30) if options.get("async_op") else result


def three_ways(me, value):
    """Send over two groups of the same members and point to point, in one order."""
    of(me, PAIR, "one").send(f"{value} in one")
    of(me, PAIR, "two").send(f"{value} in two", async_op=True).wait(timeout=30)
    me.send(f"{value} in none", "g", 1)


def three_ways_back(me):
    """Receive the messages in another order; one receive waits before they are sent."""
    waiting = of(me, PAIR, "two").recv(async_op=True)
    found = [me.recv("g", 0, timeout=30), of(me, PAIR, "one").recv(timeout=30)]
    return [*found, waiting.wait(timeout=30)]


def broadcast_beside_a_send(me, rank):
    """A broadcast of the group, one of the worker, and a message; ranks differ in the order."""
    group, members = of(me, PAIR), [("g", [0, 1])]
    source = addresses(PAIR[0])[0]
    if rank == 0:
        works = [
            group.send("sent", async_op=True),
            me.broadcast("of the worker", members, async_op=True),
            group.broadcast("of the group", source, async_op=True),
        ]
        return [work.wait(timeout=30) for work in works]
    works = [
        group.broadcast(None, source, async_op=True),
        group.recv(async_op=True),
        me.broadcast(None, members, async_op=True),
    ]
    return [work.wait(timeout=30) for work in works]
