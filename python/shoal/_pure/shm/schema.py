"""The SQL tables of a session, and the states of a message.

A queue holds its messages in the order of their ids, which are never reused. Triggers keep the
counters up to date. A process that waits at a side of a queue has a row in `armed`, which becomes
due when it should try again. `pressed` says that a producer waits, so that no get waits for more
messages than can come.
"""

from typing import Final

__all__ = ["FORMAT", "LEASED", "LOANED", "QUEUED", "RESERVED", "SCHEMA"]

FORMAT: Final = 5
"""The version of these tables."""

QUEUED: Final = 0
"""State of a message that waits in its queue."""
LEASED: Final = 1
"""State of a message that a consumer leased; it returns to the queue unless acknowledged."""
LOANED: Final = 2
"""State of a message that a consumer took, and whose memory it still uses."""
RESERVED: Final = 3
"""State of memory that a producer fills, which belongs to no queue yet."""

SCHEMA: Final = """
CREATE TABLE session (
    format INTEGER, max_bytes INTEGER, backlog INTEGER, policy TEXT, spill TEXT,
    closed INTEGER DEFAULT 0, sealed INTEGER DEFAULT 0, used INTEGER DEFAULT 0,
    lost INTEGER DEFAULT 0, recovered INTEGER DEFAULT 0, dropped INTEGER DEFAULT 0
);
CREATE TABLE participants (
    id INTEGER PRIMARY KEY AUTOINCREMENT, host TEXT, pid INTEGER, started INTEGER
);
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, maxsize INTEGER, max_bytes INTEGER,
    closed INTEGER DEFAULT 0, count INTEGER DEFAULT 0, bytes INTEGER DEFAULT 0,
    pressed INTEGER DEFAULT 0, puts INTEGER DEFAULT 0, gets INTEGER DEFAULT 0
);
CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER, participant INTEGER);
CREATE INDEX used ON users (queue);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER, state INTEGER, owner INTEGER,
    sender INTEGER, kind INTEGER, weight INTEGER, size INTEGER, memory INTEGER, redelivered INTEGER,
    written REAL, data BLOB, file TEXT
);
CREATE INDEX waiting ON messages (queue, id) WHERE state = 0;
CREATE INDEX owned ON messages (owner) WHERE state <> 0;
CREATE INDEX leased ON messages (queue) WHERE state = 1;
CREATE TABLE armed (
    participant INTEGER, queue INTEGER, side TEXT, due INTEGER DEFAULT 0,
    PRIMARY KEY (queue, side, participant)
) WITHOUT ROWID;
CREATE TRIGGER came AFTER INSERT ON messages BEGIN
    UPDATE session SET used = used + new.memory;
    UPDATE queues SET count = count + 1, bytes = bytes + new.size, puts = puts + 1
        WHERE id = new.queue AND new.state = 0;
    UPDATE armed SET due = 1 WHERE queue = new.queue AND side = 'get' AND new.state = 0;
END;
CREATE TRIGGER went AFTER DELETE ON messages BEGIN
    UPDATE session SET used = used - old.memory;
    UPDATE queues SET count = count - 1, bytes = bytes - old.size, gets = gets + 1, pressed = 0
        WHERE id = old.queue AND old.state = 0;
    UPDATE armed SET due = 1 WHERE side = 'put';
END;
CREATE TRIGGER taken AFTER UPDATE OF state ON messages BEGIN
    UPDATE queues SET count = count - 1, bytes = bytes - old.size, gets = gets + 1, pressed = 0
        WHERE id = old.queue AND old.state = 0;
    UPDATE armed SET due = 1 WHERE side = 'put';
END;
CREATE TRIGGER pressed AFTER UPDATE OF pressed ON queues WHEN new.pressed > old.pressed BEGIN
    UPDATE armed SET due = 1 WHERE queue = new.id AND side = 'get';
END;
CREATE TRIGGER closed AFTER UPDATE OF closed ON queues BEGIN
    UPDATE armed SET due = 1 WHERE queue = new.id;
END;
CREATE TRIGGER forgotten AFTER DELETE ON queues BEGIN
    UPDATE armed SET due = 1 WHERE queue = old.id;
END;
CREATE TRIGGER left AFTER DELETE ON participants BEGIN
    DELETE FROM armed WHERE participant = old.id;
    DELETE FROM users WHERE participant = old.id;
END;
"""
