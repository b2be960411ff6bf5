-- The queues of which no worker begins anything; a queue that is served has no row.

CREATE TABLE paused_queues (
    name      TEXT PRIMARY KEY,
    paused_by TEXT NOT NULL,
    reason    TEXT,
    at_us     INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
