"""The SQL tables of a session, and the states of a message.

Triggers keep the counters up to date, so that no statement can forget to.
"""

from typing import Final

__all__ = ["FORMAT", "LEASED", "LOANED", "QUEUED", "RESERVED", "SCHEMA"]

FORMAT: Final = 3
"""The version of these tables."""

QUEUED: Final = 0
"""State of a message that waits in its queue."""
LEASED: Final = 1
"""State of a message that a consumer leased; it returns to the queue unless acknowledged."""
LOANED: Final = 2
"""State of a message that a consumer took for good, and whose memory it still uses."""
RESERVED: Final = 3
"""State of a message whose memory a producer fills."""

SCHEMA: Final = """
CREATE TABLE session (
    format INTEGER, max_bytes INTEGER, backlog INTEGER, policy TEXT, spill TEXT,
    closed INTEGER DEFAULT 0, position INTEGER DEFAULT 0, used INTEGER DEFAULT 0,
    lost INTEGER DEFAULT 0, recovered INTEGER DEFAULT 0, sealed INTEGER DEFAULT 0,
    dropped INTEGER DEFAULT 0
);
CREATE TABLE participants (
    id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER, started INTEGER, space TEXT
);
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, maxsize INTEGER, max_bytes INTEGER,
    closed INTEGER DEFAULT 0, count INTEGER DEFAULT 0, bytes INTEGER DEFAULT 0,
    pressed INTEGER DEFAULT 0, puts INTEGER DEFAULT 0, gets INTEGER DEFAULT 0,
    users INTEGER DEFAULT 0
);
CREATE INDEX unused ON queues (id) WHERE users = 0 AND count = 0 AND closed = 0;
CREATE TABLE users (
    queue INTEGER, participant INTEGER, objects INTEGER, PRIMARY KEY (queue, participant)
) WITHOUT ROWID;
CREATE INDEX used ON users (participant);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER, position INTEGER, state INTEGER,
    owner INTEGER, sender INTEGER, weight INTEGER, size INTEGER, memory INTEGER,
    redelivered INTEGER DEFAULT 0, written REAL, parts BLOB, head BLOB, file TEXT
);
CREATE INDEX waiting ON messages (queue, position) WHERE state = 0;
CREATE INDEX held ON messages (owner) WHERE state <> 0;
CREATE INDEX leased ON messages (queue) WHERE state = 1;
CREATE TABLE armed (
    participant INTEGER, queue INTEGER, side TEXT, PRIMARY KEY (queue, side, participant)
) WITHOUT ROWID;
CREATE TRIGGER opened AFTER INSERT ON users BEGIN
    UPDATE queues SET users = users + 1 WHERE id = new.queue;
END;
CREATE TRIGGER let_go AFTER DELETE ON users BEGIN
    UPDATE queues SET users = users - 1 WHERE id = old.queue;
END;
CREATE TRIGGER came AFTER INSERT ON messages BEGIN
    UPDATE session SET used = used + new.memory;
    UPDATE queues SET count = count + 1, bytes = bytes + new.size, puts = puts + 1
        WHERE id = new.queue AND new.state = 0;
END;
CREATE TRIGGER went AFTER DELETE ON messages BEGIN
    UPDATE session SET used = used - old.memory;
    UPDATE queues SET count = count - 1, bytes = bytes - old.size, gets = gets + 1
        WHERE id = old.queue AND old.state = 0;
END;
CREATE TRIGGER changed AFTER UPDATE OF state, queue, size, memory ON messages BEGIN
    UPDATE session SET used = used - old.memory + new.memory;
    UPDATE queues SET count = count - 1, bytes = bytes - old.size, gets = gets + 1
        WHERE id = old.queue AND old.state = 0;
    UPDATE queues SET count = count + 1, bytes = bytes + new.size, puts = puts + 1
        WHERE id = new.queue AND new.state = 0;
END;
"""
